"""One file per paper.  TABLE lists the methods by the names used in experiment files; each is imported on first use."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from unskew.algorithms.presets import described
from unskew.errors import ConfigError
from unskew.references import PARTS, is_method, makes
from unskew.registry import Registry


class MethodEntry(NamedTuple):
    """A method's table entry: everything known about it before it is imported.

    Attributes:
        name: Its public name in the paper's spelling: `unskew.NAME` makes it, and its keyword parameters are the
            hyperparameters.
        about: Description in one line.
        kind: "global" trains one model for all, "personal" one per client, "bound" is a bound, not a federated method.
        limit: Hyperparameters at which it must equal FedAvg, up to rounding; None if there are none.
    """

    name: str
    about: str
    kind: Literal["global", "personal", "bound"] = "global"
    limit: Mapping[str, Any] | None = None

    @property
    def target(self) -> str:
        """Import path of its maker, "module:attribute"."""
        return f"unskew:{self.name}"


# At this tau the second moment is negligible, and the adaptive step is server_lr / tau times the mean update.
_NOT_ADAPTIVE = {"server_lr": 1e8, "beta1": 0.0, "tau": 1e8, "v0": 0.0}

TABLE: dict[str, MethodEntry] = {
    "independent": MethodEntry(
        "Independent", "every client trains alone; nothing travels", "personal"
    ),
    "centralised": MethodEntry(
        "Centralised", "SGD on everybody's data in one place: a bound", "bound"
    ),
    "fedavg": MethodEntry("FedAvg", "average locally trained models (McMahan et al. 2017)"),
    "fedprox": MethodEntry(
        "FedProx", "FedAvg with a pull to the received model (Li et al. 2020)",
        limit={"mu": 0.0},
    ),
    "fedavgm": MethodEntry(
        "FedAvgM", "FedAvg with momentum on the server (Hsu et al. 2019)",
        limit={"beta": 0.0, "server_lr": 1.0},
    ),
    "fedadagrad": MethodEntry(
        "FedAdagrad", "Adagrad on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fedadam": MethodEntry(
        "FedAdam", "Adam on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fedyogi": MethodEntry(
        "FedYogi", "Yogi on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fednova": MethodEntry(
        "FedNova", "average updates per unit of local work (Wang et al. 2020)"
    ),
    "scaffold": MethodEntry(
        "SCAFFOLD", "control variates against client drift (Karimireddy et al. 2020)"
    ),
    "feddyn": MethodEntry(
        "FedDyn", "a linear term per client aligns the optima (Acar et al. 2021)",
        limit={"alpha": 0.0, "correction": False, "weighting": "samples"},
    ),
    "feddc": MethodEntry(
        "FedDC", "clients track their drift, the server takes it back (Gao et al. 2022)",
        limit={"alpha": 0.0, "drift": False, "variates": False, "weighting": "samples"},
    ),
    "fedswap": MethodEntry(
        "FedSwap", "models change clients before they are averaged (Chiu et al. 2020)",
        limit={"legs": 1, "weighting": "samples"},
    ),
    "cyclic": MethodEntry(
        "Cyclic", "one model visits the clients in turn, nothing is averaged (Chang et al. 2018)"
    ),
    "stc": MethodEntry(
        "STC", "sparse ternary updates both ways, with error feedback (Sattler et al. 2020)",
        limit={"p_up": 1.0, "p_down": 1.0, "ternary": False, "weighting": "samples"},
    ),
    "feddif": MethodEntry(
        "FedDif", "models learn from client to client before they are averaged (Ahn et al.)",
        limit={"epsilon": 2.0},
    ),
    "feddw": MethodEntry(
        "FedDW",
        "class relations are pulled to soft labels; NAME+dw adds that to any method (Liu et al. 2024)",
        limit={"mu": 0.0, "bias": "keep"},
    ),
    "moon": MethodEntry(
        "MOON", "features near the global model's, away from the client's last (Li et al. 2021)",
        limit={"mu": 0.0},
    ),
    "feduv": MethodEntry(
        "FedUV", "features uniform, outputs varied, as under IID (Son et al. 2024)",
        limit={"lambda_v": 0.0, "lambda_u": 0.0},
    ),
    "fedlc": MethodEntry(
        "FedLC", "logits calibrated by a client's class counts (Zhang et al. 2022)",
        limit={"tau": 0.0},
    ),
    "fedntd": MethodEntry(
        "FedNTD", "the received model teaches what an example is not (Lee et al. 2022)",
        limit={"beta": 0.0},
    ),
    "fedsam": MethodEntry(
        "FedSAM", "gradients at the worst point nearby (Qu et al. 2022)", limit={"rho": 0.0}
    ),
    "fedexp": MethodEntry(
        "FedExP", "longer server steps where updates disagree (Jhunjhunwala et al. 2023)",
        limit={"epsilon": 1e30, "weighting": "samples"},
    ),
    "fedacg": MethodEntry(
        "FedACG", "clients start ahead, where momentum goes (Kim et al. 2024)",
        limit={"lam": 0.0, "beta": 0.0, "weighting": "samples"},
    ),
    "fedbuff": MethodEntry(
        "FedBuff", "a server step for each full buffer, no waiting (Nguyen et al. 2022)",
        limit={"buffer": None, "server_lr": 1.0, "weighting": "samples"},
    ),
    "fedasync": MethodEntry(
        "FedAsync", "each model is mixed in as it comes, stale ones less (Xie et al. 2019)"
    ),
    "fedgen": MethodEntry(
        "FedGen", "clients' heads also train on features that a server makes (Zhu et al. 2021)",
        limit={"beta": 0.0},
    ),
    "ccvr": MethodEntry(
        "CCVR", "the head is retrained on virtual features (Luo et al. 2021)"
    ),
    "feddistill": MethodEntry(
        "FedDistill", "clients exchange mean outputs by class (Jeong et al. 2018)",
        "personal",
    ),
    "feddistill_plus": MethodEntry(
        "FedDistillPlus", "FedAvg with mean outputs by class as teacher (Zhu et al. 2021)",
        limit={"lam": 0.0},
    ),
    "fedproto": MethodEntry(
        "FedProto", "clients exchange mean features by class (Tan et al. 2022)", "personal"
    ),
    "fedmd": MethodEntry(
        "FedMD", "clients agree on class scores of public data (Li and Wang 2019)", "personal"
    ),
    "fedper": MethodEntry(
        "FedPer", "FedAvg with the last layer each client's own (Arivazhagan et al. 2019)",
        "personal", limit={"personal": ()},
    ),
    "lgfedavg": MethodEntry(
        "LGFedAvg", "FedAvg of the last layer, the body each client's own (Liang et al. 2020)",
        "personal", limit={"personal": ()},
    ),
    "ffalora": MethodEntry(
        "FFALoRA", "FedAvg of adapters' B, their A stays as drawn (Sun et al. 2024)",
        limit={"fixed": ()},
    ),
    "fedsalora": MethodEntry(
        "FedSALoRA", "FedAvg of adapters' A, their B each client's own (Guo et al. 2025)",
        "personal", limit={"personal": ()},
    ),
    "fedbn": MethodEntry(
        "FedBN", "FedAvg with normalisation each client's own (Li et al. 2021)",
        "personal", limit={"personal": ()},
    ),
    "fedrep": MethodEntry(
        "FedRep", "own heads and a common body, trained in turn (Collins et al. 2021)",
        "personal", limit={"personal": (), "head_epochs": 0, "weighting": "samples"},
    ),
    "fedbabu": MethodEntry(
        "FedBABU", "the head stays random, clients fine-tune it in the end (Oh et al. 2022)",
        "personal", limit={"fixed": (), "weighting": "samples"},
    ),
    "fedala": MethodEntry(
        "FedALA", "clients learn how much of the global model to take (Zhang et al. 2023)",
        "personal", limit={"eta": 0.0},
    ),
    "perfedavg": MethodEntry(
        "PerFedAvg", "a start that is good after one local step (Fallah et al. 2020)",
        "personal",
    ),
    "ditto": MethodEntry(
        "Ditto", "FedAvg, and beside it own models pulled to it (Li et al. 2021)", "personal"
    ),
    "pfedme": MethodEntry(
        "PFedMe", "own models near a copy of the global one (Dinh et al. 2020)", "personal"
    ),
    "apfl": MethodEntry(
        "APFL", "own models mixed with the global one, in a learned share (Deng et al. 2020)",
        "personal",
    ),
    "fedrod": MethodEntry(
        "FedRoD", "a balanced head for all and one more each (Chen and Chao 2022)", "personal"
    ),
    "fedamp": MethodEntry(
        "FedAMP", "own models pulled to those like them (Huang et al. 2021)", "personal"
    ),
    "fedfomo": MethodEntry(
        "FedFomo", "clients mix the models that are better on their data (Zhang et al. 2021)",
        "personal",
    ),
    "fedpac": MethodEntry(
        "FedPAC", "aligned features, and heads mixed for each client (Xu et al. 2023)", "personal"
    ),
    "oneshot": MethodEntry(
        "OneShot", "train long, average once (Guha et al. 2019)"
    ),
    "feddistr": MethodEntry(
        "FedDistr", "one round of embeddings of a diffusion model (Zhao et al. 2024)",
        "personal",
    ),
    "fedpft": MethodEntry(
        "FedPFT", "one round of Gaussian mixtures of latents (Beitollahi et al. 2024)",
        "personal",
    ),
    "tthf": MethodEntry(
        "TTHF", "clusters average device to device between aggregations (Lin et al. 2021)",
        limit={"cluster_size": 1, "gamma": 0, "weighting": "samples"},
    ),
    "cfa": MethodEntry(
        "CFA", "average with neighbours, then train; no server (Savazzi et al. 2020)", "personal"
    ),
    "gossip": MethodEntry(
        "Gossip", "train, average with neighbours; no server (Lian et al. 2017)", "personal"
    ),
    "qfedavg": MethodEntry(
        "QFedAvg", "clients with a high loss count more (Li et al. 2020)",
        limit={"q": 0.0},
    ),
    "maxfl": MethodEntry(
        "MAXFL", "a model good enough for as many clients as possible (Cho et al. 2022)",
        limit={"warmup": 1_000_000},
    ),
    "maxfl_hcct": MethodEntry(
        "MAXFL_HCCT", "only those train the model for whom it is good enough (HCCT's MAXFL)",
        "personal", limit={"threshold": float("inf")},
    ),
    "fedfa": MethodEntry(
        "FedFA", "clients the model serves badly count more (Huang et al. 2020)",
        limit={"alpha": 0.0, "beta": 0.0, "server_momentum": 1.0},
    ),
    "grouped": MethodEntry(
        "Grouped", "FedAvg inside given groups, a model for each",
        "personal", limit={"groups": None},
    ),
    "ifca": MethodEntry(
        "IFCA", "each client trains the model that fits it best (Ghosh et al. 2020)",
        "personal", limit={"clusters": 1, "weighting": "samples"},
    ),
    "flsc": MethodEntry(
        "FLSC", "IFCA with clients in several clusters at once (Li et al. 2022)",
        "personal", limit={"clusters": 1, "memberships": 1, "weighting": "samples"},
    ),
    "hcct": MethodEntry(
        "HCCT", "clients that gain from one another train together (Sun et al.)",
        "personal", limit={"groups": 1, "warmup": "global"},
    ),
    "hcct_e": MethodEntry(
        "HCCT_E", "HCCT that compares the layer that tells clients apart most",
        "personal", limit={"groups": 1, "warmup": "global"},
    ),
    "hcct_p": MethodEntry(
        "HCCT_P", "HCCT whose heads stay with the clients",
        "personal", limit={"groups": 1, "warmup": "global", "personal": ()},
    ),
    "cfl": MethodEntry(
        "CFL", "clusters are split where their clients disagree (Sattler et al. 2020)",
        "personal", limit={"eps1": 0.0, "weighting": "samples"},
    ),
}  # fmt: skip

METHODS = Registry(
    "method",
    "unskew.algorithms",
    {name: entry.target for name, entry in TABLE.items()},
    f"a class with {', '.join(PARTS)}, or a function annotated to return one, as in def mine(mu: float = 0.1) -> Mine",
    partial(makes, is_method),
    about={name: entry.about for name, entry in TABLE.items()},
    inside=("unskew.algorithms.",),
    made_later=True,
    elsewhere={
        **dict.fromkeys(("local", "local_only", "local_training", "alone", "standalone"), "independent"),
        **dict.fromkeys(("pooled", "pooled_data", "central"), "centralised"),
        "fedopt": "fedadam",
        "q_ffl": "qfedavg",
    },
)


def _is_wrapper(piece: Any) -> bool:
    from unskew.wrappers.base import Wrapper  # loads PyTorch, which a list of names does not need

    return inspect.isclass(piece) and issubclass(piece, Wrapper)


WRAPPERS = Registry(
    "wrapper",
    "unskew.wrappers",
    {
        "dw": "unskew.algorithms.feddw:DW",
        "clip_norm": "unskew.wrappers.compression:ClipNorm",
        "top_k": "unskew.wrappers.compression:TopK",
        "quantise": "unskew.wrappers.compression:Quantise",
        "keep_optimizer": "unskew.wrappers.training:KeepOptimizer",
        "median": "unskew.wrappers.robust:Median",
        "trimmed_mean": "unskew.wrappers.robust:TrimmedMean",
        "krum": "unskew.wrappers.robust:Krum",
        "multi_krum": "unskew.wrappers.robust:MultiKrum",
        "geometric_median": "unskew.wrappers.robust:GeometricMedian",
        "norm_bound": "unskew.wrappers.robust:NormBound",
        "central_dp": "unskew.wrappers.central_dp:CentralDP",
        "local_dp": "unskew.wrappers.local_dp:LocalDP",
        "dp_sgd": "unskew.wrappers.dp_sgd:DPSGD",
        "secure_sum": "unskew.wrappers.secure_sum:SecureSum",
    },
    "a dataclass derived from unskew.wrappers.base.Wrapper",
    _is_wrapper,
    about={
        "dw": "FedDW's term around another method, as in fedprox+dw: class relations are pulled to soft labels",
        "clip_norm": "what a client uploads is scaled down to a bound (McMahan et al. 2018)",
        "top_k": "the largest entries are uploaded, the rest is remembered for later (Stich et al. 2018)",
        "keep_optimizer": "momentum and moments of clients' optimisers go on from round to round",
        "quantise": "each number is uploaded in a few bits, right on average (Alistarh et al. 2017)",
        "median": "the server takes the median of each coordinate, against malicious clients (Yin et al. 2018)",
        "trimmed_mean": "the server leaves out the largest and smallest of each coordinate (Yin et al. 2018)",
        "krum": "the server takes the update nearest to the others (Blanchard et al. 2017)",
        "multi_krum": "the server averages the updates nearest to the others (Blanchard et al. 2017)",
        "geometric_median": "the server takes the geometric median of updates, RFA (Pillutla et al. 2022)",
        "secure_sum": "the server learns sums of uploads and no single one (Bonawitz et al. 2017)",
        "norm_bound": "the server scales updates down to a norm before it averages them (Sun et al. 2019)",
        "local_dp": "clients clip what they upload and add noise of their own: local DP (Kasiviswanathan et al. 2011)",
        "dp_sgd": "clients clip examples' gradients and add noise to each step: example-level DP (Abadi et al. 2016)",
        "central_dp": "clients' updates are clipped and their sum gets noise: client-level DP (McMahan et al. 2018)",
    },
    inside=("unskew.wrappers.",),
)


def resolve(name: str) -> Callable[..., Any]:
    """Find the class or function that makes the method called `name`; its keyword parameters are the options.

    Looked up as `unskew.registry` says.  NAME+WRAPPER is NAME with a wrapper around it, such as fedprox+dw, whose
    settings are the option WRAPPER.

    Raises:
        ConfigError: If there is no such name, if two distributions claim it, or if what it points to cannot be
            imported or makes no method.
    """
    base, _, word = name.rpartition("+")
    if base:
        return wrapping(resolve(base), WRAPPERS.resolve(word), word)
    factory: Callable[..., Any] = METHODS.resolve(name)
    return factory


def wrapping(method: Callable[..., Any], wrapper: type, word: str) -> Callable[..., Any]:
    """Turn the maker of NAME into that of NAME+WORD: the same options, and a table WORD for the wrapper's settings.

    Of a wrapper given as module:attribute the table is called as the attribute.

    Raises:
        ConfigError: If the method has an option of that name.
    """
    from unskew.wrappers.base import wrap  # loads PyTorch, which a list of names does not need

    option = word.rpartition(":")[2]
    if option in inspect.signature(method).parameters:
        name = getattr(method, "__name__", "the method")
        raise ConfigError(
            f"{name} has an option {option} already, its own or an earlier wrapper's, so +{word} cannot be added; "
            "leave it out"
        )

    def made(**options: Any) -> Any:
        by = options.pop(option, None)
        return wrap(method(**options), wrapper() if by is None else by)

    name = getattr(method, "__name__", "method")
    text = f"{name} with {wrapper.__name__}."
    return described(made, method, f"{name}+{word}", text, extra={option: (wrapper, wrapper())})
