"""`augury diagnose`: why speculation on a live server is off or poor."""
