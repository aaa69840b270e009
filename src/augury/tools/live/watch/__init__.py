"""`augury watch`: live servers side by side."""
