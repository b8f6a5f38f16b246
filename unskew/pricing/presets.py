"""Pricing presets: a cell, its carrier and its devices, by name or from a file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import schema
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.world.channel import Radio
from unskew.world.spectrum import Energy, Spectrum


@dataclass(frozen=True)
class PricingPreset:
    """A cell, its carrier and its devices."""

    channel: Radio
    spectrum: Spectrum = Spectrum(min_efficiency=1.0)
    energy: Energy = Energy()


_SLIP = Spectrum(rbs=1484, free_rbs=1200.0, whole_rbs=True, last_chunk="lost")
"""P001's Table II.  1484 = 106 RBs x 14 symbols is a slip of units: costs come out about 14 times too low."""

_CODE = Radio(d2d_height_offset=23.5)
"""The model behind P001's Table II and P000's tables: no fading, and the base station's height between devices too."""

PAPER = PricingPreset(Radio(fading="rayleigh"))
"""The system model as printed: fading, devices on one level, a sub-frame as 5G has it, and gamma_min = 1."""

PRESETS = {
    "paper": PAPER,
    "p000": PricingPreset(_CODE, _SLIP),
    "p001": PricingPreset(_CODE, replace(_SLIP, min_efficiency=1.0)),
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
