"""Pricing presets: a cell, its carrier and its devices, by name or from a file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import schema
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.world import spectrum as spectra
from unskew.world import wireless
from unskew.world.energy import Energy
from unskew.world.spectrum import Spectrum
from unskew.world.wireless import Radio


@dataclass(frozen=True)
class PricingPreset:
    """A cell, its carrier and its devices."""

    channel: Radio
    spectrum: Spectrum = spectra.PAPER
    energy: Energy = Energy()


PRESETS = {
    "paper": PricingPreset(wireless.PAPER, spectra.PAPER),
    "p000": PricingPreset(wireless.P001, spectra.P000),
    "p001": PricingPreset(wireless.P001, spectra.P001),
}


def preset(name: str) -> PricingPreset:
    """A preset by name, or from a TOML file.

    The file has up to three tables, [channel], [spectrum] and [energy], and may begin with `preset = "p001"`.  Settings
    that the tables omit come from that preset, or from `paper`.

    Raises:
        ConfigError: If there is no such name or file, or a setting is unknown or not allowed.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"no channel is called {name!r}; choose {', '.join(PRESETS)}, or a file that ends in .toml")
    table = config.read_toml(path)
    base = table.pop("preset", "paper")
    if not isinstance(base, str) or base not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {schema.show(base)} ({path})")
    parts: dict[str, Any] = {part: getattr(PRESETS[base], part) for part in ("channel", "spectrum", "energy")}
    with schema.in_file(str(path)):
        for key, settings in table.items():
            if key not in parts:
                raise schema.unknown(key, ["preset", *parts], "", "a preset")
            values = schema.checked(type(parts[key]), settings, key)
            with schema.errors_at(key):
                parts[key] = replace(parts[key], **values)
    return PricingPreset(**parts)
