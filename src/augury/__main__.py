"""`python -m augury`, for where the script is not on the path."""

from augury.cli import main

main()
