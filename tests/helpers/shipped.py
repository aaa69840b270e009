"""Drafters that need no training: those that packages/ ships."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parents[2] / "packages" / "augury-smollm2-drafters" / "src" / "augury_smollm2_drafters"
SHIPPED_EAGLE3 = SHIPPED / "eagle3"  # of the embedded model
