"""Pieces by name: methods, wrappers, data sets, splits, priors, models, channels, executors, trackers and the rest.

Every kind of piece is a `Registry`, and all are searched in the same way:

    our table           NAME, a line in the package that holds the kind
    installed packages  NAME, an entry point in the group `unskew.KINDS` of another distribution:

                            [project.entry-points."unskew.splits"]
                            halves = "stranger.split:Halves"

    module:attribute    for a piece in a file of the user's own; see `unskew.references` for who may name one

A piece with settings is a dataclass or a function with annotated parameters: `Registry.build` checks a table of
settings against it, as for our own.  A setting annotated `Annotated[Channel, CHANNELS]` takes a table with the `name`
of a piece.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from unskew import references
from unskew.errors import ConfigError, did_you_mean

OURS = "unskew"


class Entry(NamedTuple):
    """A registered piece: its name, "module:attribute", and the distribution it belongs to."""

    name: str
    target: str
    owner: str


@dataclass(frozen=True, eq=False)
class Registry:
    """Pieces of one kind by name.

    Attributes:
        kind: One of them, as messages call it: "split".
        group: Entry points of other distributions: "unskew.splits".
        ours: Our own by name, each as "module:attribute".
        need: End of the sentence "split X must be ...".
        fits: True if an object can be such a piece; decided without calling it.
        about: A line about each of ours; where there is none, it is read from the piece.
        inside: Packages of unskew whose classes a file may name although they are in no table.
        schemes: Words before a colon that are no module: "npz" in npz:PATH.
        made_later: What an installed package registers need not fit, because what it makes is checked.
        elsewhere: Name that others use -> ours, for the sentence on an unknown name.
    """

    kind: str
    group: str
    ours: Mapping[str, str]
    need: str
    fits: Callable[[Any], bool]
    about: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    made_later: bool = False
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    # ------------------------------------------------------------ names
    def entries(self) -> list[Entry]:
        """Every registered piece, ours first."""
        ours = [Entry(name, target, OURS) for name, target in self.ours.items()]
        return [*ours, *sorted(Entry(e.name, e.value, _owner(e)) for e in self._installed())]

    def names(self) -> list[str]:
        """Every registered name, ours first."""
        return list(dict.fromkeys(entry.name for entry in self.entries()))

    def check(self, name: str) -> None:
        """Check that a name is registered, or has the form of a reference; nothing is imported.

        Raises:
            ConfigError: If not, with the nearest known name; or if two distributions claim it.
        """
        if not isinstance(name, str):
            raise ConfigError(
                f"{self.kind} must be a name, one of {', '.join(self.names())}, or module:attribute for one of your "
                f"own, got a value of type {type(name).__name__}"
            )
        if ":" not in name:
            self._entry(name)

    def permit(self, name: str, place: str) -> None:
        """Refuse a name if it would import code that is not installed; see `references.permit`.

        Raises:
            ConfigError: If so, with the option that allows it.
        """
        if name.partition(":")[0] in self.schemes:
            return
        references.permit(name, place, self._registered())

    def name_of(self, target: Any) -> str:
        """The name that `resolve` finds this class or function by."""
        reference = f"{target.__module__}:{target.__qualname__}"
        registered = {t: name for name, t in self.ours.items()}
        if reference not in registered:
            # A package may register a piece under the address of a module that imports it.
            return next((e.name for e in self._installed() if self._load(e) is target), reference)
        return registered[reference]

    # ------------------------------------------------------------ pieces
    def resolve(self, name: str) -> Any:
        """Find the piece of this name.

        Raises:
            ConfigError: If there is none, if two distributions claim the name, or if what it stands for cannot be
                imported or is no such piece.
        """
        what = f"{self.kind} {name!r}"
        if ":" in name and name not in self.ours:
            if name in self._registered():
                return references.load(name, what)
            return references.find(name, what, self.need, self.fits, self.inside)
        entry = self._entry(name)
        if entry.owner == OURS:
            return references.load(entry.target, what)
        return self._fitting(entry.target, f"{what} of {entry.owner}")

    def build(self, table: Any, place: str) -> Any:
        """Make the piece that a table names, with the table's other entries as its settings.

        Raises:
            ConfigError: If its name or a setting is not known, or a value is not allowed.
        """
        from unskew import schema  # a tenth of a second, which listing names does not need

        name = table.get("name") if isinstance(table, Mapping) else table
        if not isinstance(table, Mapping) or not isinstance(name, str):
            got = "no name" if name is None else schema.show(name)
            raise ConfigError(f"{place}.name must be one of {', '.join(self.names())}, got {got}")
        with schema.errors_at(f"{place}.name"):
            target = self.resolve(name)
        with schema.errors_at(place):
            named = "name" in schema.parameters(target)  # a piece may keep the name it was made by
        options = {key: value for key, value in table.items() if key != "name" or named}
        return schema.build(target, options, place, owner=name)

    def describe(self) -> dict[str, str]:
        """One line about each registered piece by name, with the distribution it comes from unless it is ours."""
        lines: dict[str, str] = {}
        for entry in self.entries():
            if entry.owner == OURS:
                known = self.about.get(entry.name)
                lines[entry.name] = _first_line(self.resolve(entry.name)) if known is None else known
                continue
            try:
                about = _first_line(self._fitting(entry.target, f"{self.kind} {entry.name!r}"))
            except Exception as error:  # a stranger's module, which raises what it likes; the list goes on
                about = f"cannot be used: {error}"
            line = f"{about} [{entry.owner}]".lstrip()
            other = lines.get(entry.name)
            lines[entry.name] = line if other is None else f"provided twice, uninstall one: {other}; {line}"
        return lines

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Let a setting `Annotated[..., REGISTRY]` take a table; `unskew.schema` has checked it by then."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda table: self.build(table, self.kind))

    # ------------------------------------------------------------ looking up
    def _installed(self) -> list[EntryPoint]:
        return [e for e in installed(tuple(sys.path)) if e.group == self.group]

    def _registered(self) -> frozenset[str]:
        return frozenset((*self.ours.values(), *(e.value for e in self._installed())))

    def _entry(self, name: str) -> Entry:
        entries = self.entries()
        claims = [entry for entry in entries if entry.name == name]
        if len(claims) > 1:
            raise ConfigError(
                f"{self.kind} {name!r} is provided by {' and by '.join(e.owner for e in claims)}; uninstall one, or "
                f"name the one you mean: {' or '.join(e.target for e in claims)}"
            )
        if not claims:
            known, theirs = self.names(), name.lower().replace("-", "_").replace(" ", "_")
            ours = self.elsewhere.get(theirs)
            raise ConfigError(
                f"unknown {self.kind} {name!r}{f'; did you mean {ours}?' if ours else did_you_mean(theirs, known)} "
                f"(there are: {', '.join(known)}; or give module:attribute)"
            )
        return claims[0]

    def _fitting(self, target: str, what: str) -> Any:
        piece = references.load(target, what)
        if not self.fits(piece) and not (self.made_later and callable(piece)):
            raise ConfigError(f"{what} must be {self.need}; {target} is {references.described(piece)}")
        return piece

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return references.load(entry.value, f"{self.kind} {entry.name!r}")
        except ConfigError:  # a broken package is nobody's piece
            return None


@functools.lru_cache(1)
def installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """List the pieces of other distributions on `path`; read once, since it takes a twentieth of a second."""
    of_all = entry_points()
    return tuple(e for group in of_all.groups if group.startswith(f"{OURS}.") for e in of_all.select(group=group))


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else f"the installed {entry.value}"


def _first_line(piece: Any) -> str:
    if callable(piece):
        return (piece.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return str(getattr(piece, "about", ""))
