"""Coverage-guided fuzzing of what decodes bytes from other machines: `python fuzz_codec.py CORPUS -max_total_time=60`.

An input's first byte names a type, its second a form: a message as it arrives, the JSON of a well-formed message with a
few tensors (which random bytes would hardly ever reach), or the head of an envelope.  Whatever comes is refused by a
WireError, or is a value of the type, which travels again as the same bytes.
"""

import json
import sys
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-not-found,unused-ignore]

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
with atheris.instrument_imports(include=["unskew.wire", "unskew.runtime.message", "unskew.runtime.validation"]):
    from unskew import wire
    from unskew.runtime import message, validation

import torch
from recipe import rounds, simulator

from unskew.errors import WireError
from unskew.protocol import Held

METHODS = ("feddw", "feddif", "stc", "scaffold", "hcct", "fedproto", "maxfl", "relay")
MODEL = simulator("fedavg", "perceptron").population.initial
VALIDATOR = validation.Validator(MODEL, 1 << 22, sizes={"classes": 3})
HEADS = {**message.REQUESTS, **{f"{name} reply": of for name, of in message.REPLIES.items()}}


def traffic() -> dict[str, tuple[Any, bytes]]:
    """A message of each type that the methods exchange, by its type."""
    examples: dict[str, tuple[Any, bytes]] = {}
    decode = wire.decode

    def looking(data: bytes, of: Any, max_bytes: int | None = None) -> Any:
        examples.setdefault(str(of), (of, data))
        return decode(data, of, max_bytes)

    wire.decode = looking
    for method in METHODS:
        for _ in rounds(simulator(method, "perceptron", codec=True), 1):
            pass
    wire.decode = decode
    return examples


EXAMPLES = [
    *traffic().values(),
    (dict[int, float], wire.encode({1: 0.5})),
    (tuple[int | str | None, ...], wire.encode((1, "a", None))),
    (Held | torch.Tensor | None, wire.encode(torch.ones(2, 3))),
    (bytes, wire.encode(b"octets")),
]


def in_a_message(text: bytes) -> bytes:
    """A well-formed message of this JSON and a few tensors."""
    tensors = {
        path: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, path in enumerate("abcd")
    }
    head = {"__metadata__": {"unskew": text.decode("utf-8", "ignore")}, **tensors}
    header = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


def one_input(data: bytes) -> None:
    """Decode one input; an exception is a finding."""
    if len(data) < 2:
        return
    kind, form, rest = data[0], data[1] % 3, data[2:]
    try:
        if form == 2:
            name = list(HEADS)[kind % len(HEADS)]
            message.read(message.Envelope(name, rest.decode("utf-8", "ignore")), HEADS)
            return
        of, _ = EXAMPLES[kind % len(EXAMPLES)]
        value = VALIDATOR.decode(rest if form == 0 else in_a_message(rest), of)
    except WireError as error:
        if len(str(error)) > 10_000:
            raise RuntimeError("a refusal must be a sentence") from error
        return
    again = wire.encode(value)
    if wire.encode(VALIDATOR.decode(again, of)) != again:
        raise RuntimeError("a value that was let in must travel as itself")


def main() -> None:
    """Write a corpus to begin with and fuzz."""
    corpus = Path(sys.argv[1])
    for i, (_, data) in enumerate(EXAMPLES):
        (corpus / f"message-{i}").write_bytes(bytes([i, 0]) + data)
        if data:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            (corpus / f"json-{i}").write_bytes(bytes([i, 1]) + header["__metadata__"]["unskew"].encode())
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
