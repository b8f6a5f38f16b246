"""Info: what a method reports of a round besides accuracy, as types.

A method with `def info(self, state)` returns one of the dataclasses below, or several as a tuple; each becomes a row of
the record that names its type.  The same pydantic adapter writes and reads a row, so a report draws exactly what the
method reported and refuses damaged rows.  A section of the report draws one type and its subtypes.

Your own method may return these types and gets their sections.  It may also return a dataclass or dictionary of its
own, which is recorded under the name of its class.  A section of your own may draw it
(`unskew.report.section.SectionKind`).  In either case `warnings` are sentences for the user, and `ignored` are replies
that the method refused.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval
from pydantic import AfterValidator, AllowInfNan, TypeAdapter, ValidationInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python


def _exists(client: int, info: ValidationInfo) -> int:
    clients = (info.context or {}).get("clients")
    if clients is not None and client >= clients:
        raise ValueError(f"clients must be below {clients}, got {client}")
    return client


def _one_each(values: tuple[float | None, ...], info: ValidationInfo) -> tuple[float | None, ...]:
    clients = (info.context or {}).get("clients")
    if clients is not None and len(values) not in (0, clients):
        raise ValueError(f"must have a value for each of {clients} clients, got {len(values)}")
    return values


Count = Annotated[int, Interval(ge=0, lt=2**63)]
Finite = Annotated[float, AllowInfNan(False)]
Client = Annotated[int, Ge(0), AfterValidator(_exists)]
"""A client's number, checked against the number of clients where the reader's context has `clients`."""
OfEachClient = Annotated[tuple[float | None, ...], AfterValidator(_one_each)]
"""A number for each client, None where it is not known."""


@dataclass(frozen=True)
class Refused:
    """A reply that a method refused: its client, its step, and the reason."""

    client: int
    step: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Info:
    """A report with warnings and refused replies alone.

    Attributes:
        warnings: Sentences for the user, shown once during the run and in the report.
        ignored: Replies that the method refused.
    """

    warnings: tuple[str, ...] = ()
    ignored: tuple[Refused, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AbandonedRound(Info):
    """A round that had no result.

    Attributes:
        reason: Reason, a sentence.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class OneClassModels(Info):
    """Clients whose own models find test examples of one class only, so that their accuracy says little.

    Attributes:
        clients: Their numbers, ascending.
    """

    clients: tuple[Client, ...]


@dataclass(frozen=True, kw_only=True)
class WorseThanConstant(Info):
    """Clients whose own models do worse on their test examples than what their training targets would always say.

    Attributes:
        clients: Their numbers, ascending.
        mean: True if the mean over all clients is worse, too.
    """

    clients: tuple[Client, ...]
    mean: bool


# ---------------------------------------------------------------- privacy
@dataclass(frozen=True)
class Privacy:
    """Privacy of a round: what each party saw, and the guarantee.

    Attributes:
        epsilon: Epsilon of differential privacy, or the reason why there is none.
        server, clients: Description of what each of them saw.
        delta: Delta that belongs to the epsilon.
        uploads: Number of uploads over which the epsilon adds up, those of the client asked most often; None if it does
            not depend on them.
        covers: Data that the guarantee covers; without an epsilon, the part of the upload that has its own guarantee.
        before: What clients disclosed before training, which no guarantee covers.
    """

    epsilon: Finite | str
    server: str
    clients: str
    delta: Finite | None = None
    uploads: Count | None = None
    covers: str = ""
    before: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, str) and (self.delta is None or not self.covers):
            raise ValueError("an epsilon needs a delta and what it covers")

    @property
    def bound(self) -> float:
        """Epsilon as a number, infinite if there is none."""
        return math.inf if isinstance(self.epsilon, str) else self.epsilon

    @property
    def guarantee(self) -> str:
        """The guarantee in a sentence."""
        if isinstance(self.epsilon, str):
            text = "; ".join(part for part in (self.epsilon, self.covers) if part)
            return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."
        uploads = "" if self.uploads is None else f" after {self.uploads:,} uploads of the client asked most often"
        but = f", but not what was agreed on before training: {self.before}" if self.before else ""
        return f"ε = {self.epsilon:.3g} at δ = {self.delta:g}{uploads}. Covers {self.covers}{but}."


@dataclass(frozen=True, kw_only=True)
class ReleaseNoise:
    """Noise of each release, by which several trainings add up.

    Attributes:
        multiplier: Standard deviation over the distance by which what is covered moves a release.
        sample: Number of clients, and of those in the largest cohort, where a server adds it to sums over cohorts.
            Where clients add it themselves, the probability that an example is in a release, 1 for all of a client.
    """

    multiplier: Finite
    sample: Finite | tuple[Count, Count]


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget(Info):
    """Differential privacy of models: what has been spent up to a round.

    Attributes:
        privacy: The guarantee for all rounds so far.
        clip: Clipping norm of an update in the next round; None if there is none.
        noise: Standard deviation of the last round's noise on every number.
        releases: Rounds, or uploads of the client asked most often, that the guarantee adds up.
        each: The noise of each release.
        budget: Largest epsilon that may be spent; None is no limit.
    """

    privacy: Privacy
    clip: Finite | None
    noise: Finite
    releases: Count
    each: ReleaseNoise
    budget: Finite | None = None


@dataclass(frozen=True, kw_only=True)
class ExampleBudget(PrivacyBudget):
    """Differential privacy of single examples: what has been spent up to a round.

    Attributes:
        spent: Epsilon that each client has spent; one that never trained is left out.
    """

    spent: Mapping[Client, Finite]


# ---------------------------------------------------------------- groups of clients
@dataclass(frozen=True, kw_only=True)
class ClientGroups(Info):
    """Clients that train together: the members of each group, which may be empty or overlap."""

    groups: tuple[tuple[Client, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ChosenGroups(ClientGroups):
    """ClientGroups that clients choose.

    Attributes:
        chosen: Group or groups of each client by its last choice, as positions in `groups`.
        heard: Clients that replied this round.
        ties: Clients for which two groups were equally good.
        judged: True if clients chose in this round.
    """

    chosen: Mapping[Client, Count | tuple[Count, ...]]
    heard: tuple[Client, ...] = ()
    ties: tuple[Client, ...] = ()
    judged: bool = True


@dataclass(frozen=True)
class Bisection:
    """A cluster that was split in two; `similarity` is the largest cosine between members of different halves."""

    round: Count
    halves: tuple[tuple[Client, ...], tuple[Client, ...]]
    similarity: float


@dataclass(frozen=True, kw_only=True)
class SplitGroups(ClientGroups):
    """ClientGroups formed by splitting (CFL).

    Attributes:
        mean_norm, max_norm: Norm of each group's mean update, and of its largest; None before the first.
        splits: All splits so far.
    """

    mean_norm: tuple[float | None, ...]
    max_norm: tuple[float | None, ...]
    splits: tuple[Bisection, ...]


@dataclass(frozen=True)
class GroupMerge:
    """Two groups, named by one member of each, became one.

    Attributes:
        benefit: Benefit by (15) of HCCT's paper, None if it was not a finite number.
        utility: Sum of all clients' utilities afterwards.
    """

    merge: tuple[Client, Client]
    benefit: float | None
    utility: float | None = None


@dataclass(frozen=True)
class TriedAlpha:
    """Result of a pilot of HCCT with one alpha.

    Attributes:
        alpha: Cost of a small group, in examples.
        groups: Number of groups at the end.
        accuracy: Share of the held-out training examples that the clients' models are right on; None without classes,
            or if nobody has held out any.
        loss: Mean loss on them.
    """

    alpha: float
    groups: int
    accuracy: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Placement:
    """An arrival, a member of the group it joined (None if it stays alone), and the benefit of joining."""

    client: Client
    group: Client | None
    benefit: float | None


@dataclass(frozen=True)
class Apart:
    """A client that could not be compared, and why."""

    client: Client
    why: str


@dataclass(frozen=True, kw_only=True)
class JudgedGroups(ClientGroups):
    """ClientGroups formed by the similarity of clients' updates in the round before (HCCT), and the evidence for them.

    Attributes:
        history: Merges that were made, in order.
        beyond: Merges that would have come next.
        placed: Arrivals.
        alone: Clients that could not be compared.
        layer: Name of the layer whose updates are compared; None for all.
        compared: Clients in the rows and columns of `similarity`.
        similarity: Cosine of every two updates, None where one has no direction; empty with many clients.
        utility: Utility of each client, (9) of the paper.
        restless: Clients that would have a larger utility in another group, or alone.
        alpha: Alpha that a pilot chose; None where it is a setting.
        tried: Results of that pilot.
    """

    history: tuple[GroupMerge, ...] = ()
    beyond: tuple[GroupMerge, ...] = ()
    placed: tuple[Placement, ...] = ()
    alone: tuple[Apart, ...] = ()
    layer: str | None = None
    compared: tuple[Client, ...] = ()
    similarity: tuple[tuple[float | None, ...], ...] = ()
    utility: OfEachClient = ()
    restless: tuple[Client, ...] = ()
    alpha: float | None = None
    tried: tuple[TriedAlpha, ...] = ()


# ---------------------------------------------------------------- models that travel between clients
@dataclass(frozen=True, kw_only=True)
class Passes(Info):
    """Numbers of models and training passes of a round that the ledger does not show; None leaves them to the ledger.

    Attributes:
        models: Number of models in training.
        iterations: Passes of local training; simultaneous ones count once.
    """

    models: Count | None = None
    iterations: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True)
class DiffusionMove:
    """Transfer of a model from the client that trained it to the next, which bid how much closer to IID it would get.

    Attributes:
        gamma: Spectral efficiency of the link, bit/s/Hz.
    """

    model: Count
    src: Client
    dst: Client
    bid: float
    gamma: float | None = None


@dataclass(frozen=True)
class DiffusionHop:
    """A diffusion round, counted from 1.

    Attributes:
        efficiency: Diffusion efficiency, the mean over all models in 1/(Hz s).
        moves: Moves that arrived.
        exchange: Exchange in which models moved, counted from the round's first training.
    """

    hop: Count
    efficiency: float
    moves: tuple[DiffusionMove, ...]
    exchange: Count


@dataclass(frozen=True, kw_only=True)
class DiffusionRound(Passes):
    """A communication round of FedDif.

    Attributes:
        starts: The client that begins with each model.
        hops: Its diffusion rounds.
        sizes: Examples along the chain of each model.
    """

    starts: tuple[Client, ...]
    hops: tuple[DiffusionHop, ...]
    sizes: tuple[Count, ...]

    def chains(self) -> tuple[tuple[int, ...], ...]:
        """List the clients that trained each model, in order."""
        chains = [[client] for client in self.starts]
        for hop in self.hops:
            for move in hop.moves:
                chains[move.model].append(move.dst)
        return tuple(map(tuple, chains))


@dataclass(frozen=True, kw_only=True)
class Exchanges(Info):
    """Gossip inside clusters (TT-HF): the clients drawn, and the exchanges of each cluster at each D2D instant."""

    drawn: tuple[Client, ...]
    exchanges: tuple[tuple[Count, ...], ...]


# ---------------------------------------------------------------- weights of clients
@dataclass(frozen=True, kw_only=True)
class ClientWeights(Info):
    """Weights that a method gives clients by their performance (FedFA).

    Attributes:
        weights: Weight of each client that replied.
        accuracy: Accuracy of the model it received, on its own data, a fraction.
        trained: Number of rounds it has trained in so far.
    """

    weights: Mapping[Client, float]
    accuracy: Mapping[Client, float]
    trained: Mapping[Client, Count]


@dataclass(frozen=True, kw_only=True)
class Appeals(Info):
    """Share of clients for which the global model is good enough (MAXFL).

    Attributes:
        weights: Weight of each client that replied.
        met: True if the model it was sent met its requirement.
        appeal: Share of clients whose requirement was met; None if no client replied.
    """

    weights: Mapping[Client, float]
    met: Mapping[Client, bool]
    appeal: float | None


# ---------------------------------------------------------------- classes and embeddings
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ClassRelations(Info):
    """Soft labels and class relations, which FedDW's term compares.  Matrices are left out with many classes.

    Attributes:
        sl: Soft labels, row c the mean prediction for examples of class c.
        counts: Number of examples of each class behind them.
        cr: Class relations of the global model; None if there is none.
        class_norms: Norm of each class's weights in the global model.
        distance: ||SL - CR||_F; None if there is no global model.
        privacy: Information that the uploads reveal.
    """

    privacy: Privacy
    sl: Matrix | None = None
    counts: tuple[float, ...] | None = None
    cr: Matrix | None = None
    class_norms: tuple[float, ...] | None = None
    distance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Embeddings(Info):
    """The one round of FedDistr: the embeddings that clients sent, their alignment, and what each party learned.

    Attributes:
        embeddings: (K, axes); with many, the first of them.
        coordinates: `embedding` for the embeddings themselves, `principal` for their principal coordinates.
        labels, counts, owners: Label, number of examples and client of each; a count is 0 if none was sent.
        sent: Number of embeddings sent.
        width: Length of an embedding.
        distance: Distance used for the alignment.
        threshold: Largest distance at which matched embeddings count as the same.
        pairs: Matched pairs, nearest first: two numbers and their distance.
        sets: Numbers of the embeddings that stand for one distribution.
        kept: The embedding of each set that was distributed.
        closest: Smallest distance from a generated image to one of the client's own, in medians, by client; None if
            not finite.
        trained_at: Description of the party that trains each model.
        sigma: Standard deviation of the noise on an upload, in units of its bound; None without noise.
    """

    embeddings: tuple[tuple[Finite, ...], ...]
    coordinates: str
    labels: tuple[Count, ...]
    counts: tuple[Count, ...]
    owners: tuple[Client, ...]
    sent: Count
    distance: str
    threshold: Finite
    pairs: tuple[tuple[Count, Count, Finite], ...]
    sets: tuple[tuple[Count, ...], ...]
    kept: tuple[Count, ...]
    privacy: Privacy
    closest: Mapping[Client, Finite | None]
    width: Count = 0
    trained_at: str = ""
    sigma: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mixtures(Info):
    """The one round of FedPFT: the mixture components of each label, and what each party learned from them."""

    components: Mapping[Count, Count]
    privacy: Privacy


# ---------------------------------------------------------------- predictions
@dataclass(frozen=True, kw_only=True)
class PredictedNumbers(Info):
    """Numbers that the global model predicts for the global test set after the last round.

    Attributes:
        true, predicted: Target and prediction of each of at most 500 examples.
    """

    true: tuple[Finite, ...]
    predicted: tuple[Finite, ...]


Share = Annotated[float, Interval(ge=0.0, le=1.0)]


@dataclass(frozen=True, kw_only=True)
class RankedClasses(Info):
    """Ranking by the global model of the global test set, of two classes, after the last round; at most 200 points.

    Attributes:
        false_alarms, found: The ROC curve: shares of the first and of the second class above a threshold.
        recall, precision: Precision by recall.
        likely, happened: Mean predicted probability of the second class, and its share, in tenths of the examples;
            empty if the loss gives no probabilities.
        area, average_precision: Areas under the two curves.
        share: Share of the second class.
    """

    false_alarms: tuple[Share, ...]
    found: tuple[Share, ...]
    recall: tuple[Share, ...]
    precision: tuple[Share, ...]
    likely: tuple[Share, ...]
    happened: tuple[Share, ...]
    area: Share
    average_precision: Share
    share: Share


@dataclass(frozen=True, kw_only=True)
class RecallByClass(Info):
    """Examples of the global test set that the global model finds after the last round, by class.

    Attributes:
        found, examples: Of each class, in the order of the classes, the number that is found, and of all.
        confused: Examples of each class, by the class that is predicted; empty with many classes.
    """

    found: tuple[Count, ...]
    examples: tuple[Count, ...]
    confused: tuple[tuple[Count, ...], ...] = ()


# ---------------------------------------------------------------- what a model goes by, and for whom it works
@dataclass(frozen=True, kw_only=True)
class Effects(Info):
    """Coefficients of a linear global model after the last round, with what the training rows say of their precision.

    Attributes:
        names: What each is the effect of: one unit of a column, or a word beside another.
        estimates: Coefficient of each, on the scale of the linear predictor.
        errors: Its standard error; None where the training rows say nothing of the effect.
        ratio: What the exponential of a coefficient is a ratio of; empty where effects are differences.
        rows: Training rows behind the errors.
        step: How far the farthest coefficient is from the maximum of the likelihood, in its standard errors.
        of: The class whose odds these are; empty for other effects.
    """

    names: tuple[str, ...]
    estimates: tuple[Finite, ...]
    errors: tuple[Finite | None, ...]
    ratio: Literal["odds", "rate", "hazard", ""]
    rows: Count
    step: Finite
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Importance(Info):
    """Losses of the global model's headline where a column of the test rows is shuffled.

    Attributes:
        names: Columns of the table.
        lost: Of each column, what each shuffle costs; below 0 where the headline is better.
    """

    names: tuple[str, ...]
    lost: tuple[tuple[Finite, ...], ...]


@dataclass(frozen=True)
class Subgroup:
    """Held-out rows of all clients with one value, or a range of values, of a column.

    Attributes:
        by, value: The column, and the value or range.
        rows: Their number.
        result: Headline of the clients' own models on them; None where it is not defined.
    """

    by: str
    value: str
    rows: Count
    result: Finite | None


@dataclass(frozen=True, kw_only=True)
class Subgroups(Info):
    """Results by values of columns that `by` names, after the last round."""

    groups: tuple[Subgroup, ...]


@dataclass(frozen=True)
class SiteCurve:
    """Probabilities of the second class at one client, by its own model on its held-out rows.

    Attributes:
        client, rows: Its number, and that of the rows.
        likely, happened: Mean probability and share of the second class in fifths of the rows by probability.
        share: Share of the second class.
        benefit: Net benefit at each threshold.
        false_alarms, found: The ROC curve, as of `RankedClasses`.
    """

    client: Client
    rows: Count
    likely: tuple[Finite, ...]
    happened: tuple[Finite, ...]
    share: Finite
    benefit: tuple[Finite, ...]
    false_alarms: tuple[Finite, ...] = ()
    found: tuple[Finite, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SiteCurves(Info):
    """Calibration and net benefit by client, after the last round, of two classes.

    Attributes:
        thresholds: Probabilities from which on one would act.
        sites: Clients with enough rows.
    """

    thresholds: tuple[Finite, ...]
    sites: tuple[SiteCurve, ...]


# ---------------------------------------------------------------- rows of the record
TYPES: dict[str, type[Info]] = {
    kind.__name__: kind
    for kind in (
        Info, AbandonedRound, OneClassModels, WorseThanConstant, ClientGroups, ChosenGroups, SplitGroups, JudgedGroups,
        Passes, DiffusionRound, Exchanges,
        ClientWeights, Appeals, ClassRelations, Embeddings, Mixtures, PrivacyBudget, ExampleBudget, PredictedNumbers,
        RankedClasses, RecallByClass, Effects, Importance, Subgroups, SiteCurves,
    )
}  # fmt: skip
"""Types by their names in rows."""

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter that writes and checks a type, made once; of a type without a hash, each time."""
    try:
        hash(kind)
    except TypeError:  # somebody's Annotated with a dictionary
        return TypeAdapter(kind)
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def parts(reported: object) -> tuple[object, ...]:
    """List the values that a method's `info` returned."""
    return reported if isinstance(reported, tuple) else (reported,)


def info_type(kind: type) -> str:
    """The name of a type in rows: its own for one of unskew's, "module:class" for another."""
    if TYPES.get(kind.__name__) is kind:
        return kind.__name__
    return f"{kind.__module__}:{kind.__qualname__}"


def row(value: object) -> dict[str, Any]:
    """Return the type and content of a row of the record, as plain JSON.

    Raises:
        TypeError: If `value` is neither a dataclass nor a dictionary.
        ValueError: If it holds a value that JSON cannot represent.
    """
    if not isinstance(value, Mapping) and (not is_dataclass(value) or isinstance(value, type)):
        raise TypeError(
            f"info must be a dataclass or a dictionary, got {value!r:.60}; it returns () where there is nothing to "
            "report"
        )
    name = "dict" if isinstance(value, Mapping) else info_type(type(value))
    try:
        of_ours = name in TYPES
        plain = adapter(type(value)).dump_python(value, mode="json") if of_ours else to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ValueError(
            f"info can hold numbers, texts, and lists, dictionaries and dataclasses of them ({error}); float(x) and "
            "x.tolist() turn tensors and arrays into these"
        ) from None
    return {"type": name, "info": plain}


def check(value: object, clients: int) -> None:
    """Check that a report's row will be read as it is written.

    Raises:
        TypeError, ValueError: As `row`.
        pydantic.ValidationError: If it is one of the types above and holds what that does not allow, as a client that
            there is not.
    """
    written = row(value)
    if written["type"] in TYPES:
        adapter(type(value)).validate_json(json.dumps(written["info"]), strict=True, context={"clients": clients})


def with_disclosed(part: Any, disclosed: str) -> Any:
    """Add what clients disclosed before training to a report that says what is private; "" adds nothing."""
    privacy = getattr(part, "privacy", None)
    if not disclosed or not isinstance(privacy, Privacy):
        return part
    server = f"{privacy.server}; and before training, from each client, exactly: {disclosed}"
    clients = f"{privacy.clients}; and what all clients' {disclosed} came to"
    known = replace(privacy, before=disclosed, server=server, clients=clients)
    return replace(part, privacy=known)


def warnings_of(value: object) -> tuple[str, ...]:
    """Return the warnings of a row's info; anything that is not text is ignored."""
    return tuple(text for text in _field(value, "warnings") if isinstance(text, str))


def ignored_of(value: object) -> Iterator[dict[str, Any]]:
    """Return the replies that a method refused, in the form of rows of the record."""
    for refused in _field(value, "ignored"):
        plain = to_jsonable_python(refused)
        if isinstance(plain, dict):
            yield plain


def _field(value: object, name: str) -> Iterable[Any]:
    content = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return content if isinstance(content, Sequence) and not isinstance(content, str) else ()


def whole(reported: object, kind: type[Info]) -> Any:
    """Find the part of `info`'s result that has the given type; None if there is none."""
    return next((part for part in parts(reported) if isinstance(part, kind)), None)
