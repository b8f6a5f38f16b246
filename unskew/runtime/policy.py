"""The server's terms, and a participant's rules: what may run on its data, and what may leave.

Neither coordinator nor server can change a participant's rules, which are in a file of its own.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from unskew.errors import ConfigError, WireError

PROTECTIONS = (
    "clip_norm", "quantise", "top_k", "local_dp", "dp_sgd", "central_dp", "secure_sum", "norm_bound", "median",
    "trimmed_mean", "krum", "multi_krum", "geometric_median",
)  # fmt: skip
"""Wrappers with which a method tells no more of a client's data than without them."""


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a run over a network.

    Attributes:
        num_clients: Number of clients of the experiment.
        min_clients: Number of them that must be connected before the first round.
        deadline_s: Longest time for an exchange unless the plan sets its own, seconds.
        wait_s: Longest time to wait for those clients, seconds.
        max_norm: Largest L2 norm of all floating-point tensors of a reply together.
        max_ratio: Largest norm of a reply's model, in multiples of the median of the replies to the same request.
        max_examples: Largest number of training examples that a client may report.
        own_data: True if every client has its own data, and the experiment's images are all for testing; else each has
            its part of the experiment's split.
    """

    num_clients: Annotated[int, Ge(1)]
    min_clients: Annotated[int, Ge(1)]
    deadline_s: Annotated[float, Gt(0.0)] = 600.0
    wait_s: Annotated[float, Gt(0.0)] = 3600.0
    max_norm: Annotated[float, Gt(0.0)] = 1e6
    max_ratio: Annotated[float, Gt(1.0)] = 100.0
    max_examples: Annotated[int, Ge(1)] = 10_000_000
    own_data: bool = True

    def __post_init__(self) -> None:
        if self.min_clients > self.num_clients:
            raise ConfigError(f"min_clients must be at most the {self.num_clients} clients, got {self.min_clients}")


@dataclass(frozen=True)
class SitePolicy:
    """Rules of a participant: policy.toml.  By default everything is allowed.

    Attributes:
        accept: "policy" takes part in every experiment that these rules allow; "ask" waits until a person accepts it.
        methods: Names of the methods that may run, also with protections around them.
        relay: False refuses to hand over values for other clients.
        metrics: False keeps losses, counts of trained examples, test results and the scale of images here.
        sums: False keeps the words and sums of a table's columns here, from which sites agree on numbers.
        max_minutes: Most minutes that the steps of one experiment may take here.
        max_bytes: Most bytes that may leave in one round, replies and relayed values together.
        max_epsilon: Greatest epsilon of all noised uploads from one data set together, over all experiments.  Only
            methods run then whose clients add noise to everything in their replies but the number of examples.
        delta: Probability that belongs to max_epsilon.
        paths: Files, folders with their contents, and hub: names that the coordinator may choose to be read here.
        allow_code: True imports code that an experiment names, False does not, even with --allow-code.
        coordinator: Fingerprint of the federation's authority; experiments of others are refused.
        audit: File of the audit log; by default audit.jsonl in the site's folder.
        privacy: File that records all noised uploads; by default privacy.sqlite in the user's own state folder.
    """

    accept: Literal["policy", "ask"] = "policy"
    methods: tuple[str, ...] | None = None
    relay: bool = True
    metrics: bool = True
    sums: bool = True
    max_minutes: Annotated[float, Gt(0.0)] | None = None
    max_bytes: Annotated[int, Ge(1)] | None = None
    max_epsilon: Annotated[float, Gt(0.0)] | None = None
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    paths: tuple[str, ...] = ()
    allow_code: bool | None = None
    coordinator: str | None = None
    audit: str | None = None
    privacy: str | None = None


@dataclass(frozen=True)
class Rules:
    """A policy and its file, which refusals name.

    Attributes:
        policy: The rules.
        where: Name of the file.
    """

    policy: SitePolicy = SitePolicy()
    where: str = "policy.toml"

    def forbid(self, key: str, reason: str) -> WireError:
        """The refusal of a request, with file and key."""
        return WireError(f"{reason} ({self.where}: {key} = {json.dumps(getattr(self.policy, key))})")

    def code_allowed(self, asked: bool) -> bool:
        """True if code that an experiment names may be imported; `asked` if the user asked for that."""
        return self.policy.allow_code if self.policy.allow_code is not None else asked

    def reading(self, *own: str | None) -> AbstractContextManager[None]:
        """Allow only `own` paths, and `paths` of the policy, to be read within the block."""
        from unskew.data.places import reading_only  # with all of PyTorch

        return reading_only([*filter(None, own)], self.policy.paths, self.where)

    def audit(self, home: Path) -> Path:
        """File of the audit log, by default in the site's own folder."""
        return Path(self.policy.audit).expanduser() if self.policy.audit else home / "audit.jsonl"

    def check_names(self, table: Mapping[str, Any]) -> None:
        """Refuse an experiment (any table) with a method that may not run, by name, without looking methods up."""
        several = table.get("methods")
        for entry in several if isinstance(several, list) else [several]:
            self._check_name(str(entry.get("name") if isinstance(entry, Mapping) else entry))

    def _check_name(self, name: str) -> None:
        allowed, inside = self.policy.methods, name
        while inside.rpartition("+")[2] in PROTECTIONS:
            inside = inside.rpartition("+")[0]
        if allowed is not None and not {name, inside} & {*allowed}:
            raise ConfigError(f"method {name[:80]} may not run here: {self.where} allows methods = {list(allowed)}")

    def check_method(self, name: str, covered: bool) -> None:
        """Refuse an experiment with a method that may not run; `covered` if noise covers all that clients reply."""
        self._check_name(name)
        if self.policy.max_epsilon is not None and not covered:
            raise ConfigError(
                f"method {name} sends what has no noise of this client's own, and {self.where} has "
                f"max_epsilon = {self.policy.max_epsilon:g}; use local_dp or dp_sgd"
            )
