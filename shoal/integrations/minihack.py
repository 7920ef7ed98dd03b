"""MiniHack: `minihack:Room-5x5`. Small tasks in NetHack's world."""

from __future__ import annotations

from shoal.integrations.nethack import NetHack


class MiniHack(NetHack):
    """The ids of the package minihack."""

    packages = {"minihack": "minihack>=1", "nle": "nle>=1.2", "pkg_resources": "setuptools<81"}
    install = ("pip install --no-deps nle==1.3.0 minihack==1.0.2", "pip install cffi 'setuptools<81'")
    notes = (
        "Boxoban's levels are downloaded by `python -m minihack.scripts.download_boxoban_levels`.",
        "minihack imports pkg_resources, which setuptools 81 no longer has.",
    )


FRAMEWORK = MiniHack("minihack", "small tasks in NetHack's world", "MiniHack-", "Room-5x5")
