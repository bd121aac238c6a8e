"""The build of the Python package: scikit-build-core's, which brings a PyTorch where the environment has none."""

from __future__ import annotations

import built_for
from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: dict[str, list[str] | str] | None = None) -> list[str]:
    needed = build.get_requires_for_build_wheel(config_settings)
    return needed if built_for.of_the_environment() else [*needed, f"torch=={built_for.usual_version()}"]


get_requires_for_build_editable = get_requires_for_build_wheel
