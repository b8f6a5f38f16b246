"""Windows of several channels, as of a machine's sensors: which inputs are such, and what may not be meant in them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unskew.data.inputs import FAR_BEYOND, Array, are_windows
from unskew.words import some


def windows_of(x: Array) -> Array | None:
    """Inputs as windows (N, channels, steps), the shorter dimension for channels; None if they are none."""
    if x.dtype.kind != "f" or not are_windows(x.shape[1:]):
        return None
    flat = x.reshape(len(x), *x.shape[-2:])
    return flat if flat.shape[1] < flat.shape[2] else np.moveaxis(flat, 2, 1)


def channel_at(x: Array, channel: int) -> str:
    """A channel by its number and by its place in the array, such as "channel 2, x[..., 2, :],"."""
    place = f"{channel}, :" if x.shape[-2] < x.shape[-1] else f"{channel}"
    return f"channel {channel}, x[..., {place}],"


def doubts_on_channels(x: Array, owners: npt.NDArray[np.int64] | None, clients: Sequence[str]) -> list[str]:
    """Sentences on a channel in another unit at a site, on one that a site does not measure, and on large values.

    Args:
        x: Windows, as `windows_of` takes them; finite.
        owners: Number of each one's client, (N,); None if there are no clients.
        clients: Their names.
    """
    windows = windows_of(x)
    if windows is None:
        return []
    of_site = {"": windows}
    if owners is not None:
        of_site = {name: rows for i, name in enumerate(clients) if len(rows := windows[owners == i])}
    low, high = (np.stack([of(rows, (0, 2)) for rows in of_site.values()]) for of in (np.min, np.max))
    reach, flat = np.maximum(high, -low), low == high  # (sites, channels)
    names = list(of_site)
    sentences = []
    for c in np.flatnonzero(flat.any(0) & ~flat.all(0)).tolist():
        at = some([f"{names[i]} ({low[i, c]:g})" for i in np.flatnonzero(flat[:, c])])
        sentences.append(f"{channel_at(x, c)} has one value only at {at}: not measured there?")
    most, least = (of(reach, 0, where=~flat, initial=i) for of, i in ((np.max, 0), (np.min, np.inf)))
    times = np.where(least > 0, most / np.where(least > 0, least, 1), 0)
    c = int(times.argmax())
    if times[c] > FAR_BEYOND:
        one, other = (
            names[of(np.where(flat[:, c], fill, reach[:, c]))] for of, fill in ((np.argmax, 0), (np.argmin, np.inf))
        )
        sentences.append(
            f"{channel_at(x, c)} reaches {most[c]:g} at {one} and {least[c]:g} at {other}: is it in the same unit "
            "there?"
        )
    elif most.max() > FAR_BEYOND:
        c = int(most.argmax())
        i = int(reach[:, c].argmax())
        at, others = "", np.delete(reach[:, c], i)
        if len(others):
            at = f" at {names[i]} and {others.max():g} at {'the others' if len(others) > 1 else names[1 - i]}"
        sentences.append(
            f"{channel_at(x, c)} reaches {most[c]:g}{at}, where networks expect about 0 to 1: scale each channel by "
            "numbers that are the same for all"
        )
    return sentences
