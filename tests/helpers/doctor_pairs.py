"""For every entry that `augury doctor` can report: a command that shows it, and a neighbour that does not."""

from __future__ import annotations

from doctor_bugs import BUGS
from doctor_composability import COMPOSABILITY
from doctor_configuration import CONFIGURATION
from doctor_fits import FITS
from doctor_gates import GATES
from doctor_names import NAMES
from doctor_traffic import TRAFFIC
from doctor_writing import WRITING

PAIRS = [*NAMES, *WRITING, *CONFIGURATION, *TRAFFIC, *GATES, *COMPOSABILITY, *FITS, *BUGS]
