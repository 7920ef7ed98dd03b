"""Extensions as another package would hold them: one file of each kind (docs/extending.md)."""

from pathlib import Path

GLIMMER = Path(__file__).parent / "glimmer.h"
