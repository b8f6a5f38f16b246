"""`python -m tests.corpus [WORD...]`: compute the corpus anew, say what changed, and rewrite its files.

Words choose entries by a part of CONCERN/NAME; all others stay as they are.
"""

import sys
import time
import traceback

from .compare import CONCERNS, HERE, MACHINE, computed, differences, kept, this_machine, write


def main(words: list[str]) -> int:
    changed, failed = 0, 0
    for concern, module in CONCERNS.items():
        old = kept(concern) if (HERE / f"{concern}.json").exists() else {}
        entries, begun = {}, time.process_time()
        took: dict[str, float] = {}
        elsewhere = bool(words) and old.get(MACHINE) != this_machine()  # the others are of that machine
        for name in module.cases():
            if words and not any(word in f"{concern}/{name}" for word in words):
                entries |= {name: old[name]} if name in old else {}
                continue
            at = time.process_time()
            try:
                entries[name] = computed(concern, name)
            except Exception:
                failed += 1
                print(f"{concern}/{name} failed: {traceback.format_exc(limit=-4)}")
                continue
            if elsewhere and isinstance(entries[name], dict):
                entries[name].pop("fingerprint", None)
            took[name] = time.process_time() - at
            if name not in old:
                print(f"{concern}/{name}: new")
            elif lines := differences(old[name], entries[name]):
                print(f"{concern}/{name}:", *lines, sep="\n  ")
                changed += 1
        print(*(f"{concern}/{name}: gone" for name in {*old} - {*entries, MACHINE}), sep="\n")
        write(concern, {**entries, MACHINE: old[MACHINE] if elsewhere else this_machine()})
        slowest = sorted(took, key=lambda name: -took[name])[:8]
        print("  slowest:", ", ".join(f"{name} {took[name]:.1f} s" for name in slowest))
        print(f"{concern}: {len(entries)} entries, {time.process_time() - begun:.1f} s of CPU")
    print(f"{changed} changed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
