"""A rank of the tests: every rank runs all of them, in the same order. run.py starts it."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

sys.path.append(os.environ["ZERO_TEST_PACKAGES"])  # of transformers; torch is the interpreter's own


def main() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    suite = unittest.TestLoader().discover(str(Path(__file__).parent), pattern="*_test.py")
    if names := sys.argv[1:]:
        suite = unittest.TestLoader().loadTestsFromNames(names)
    # A rank that fails ends the others: they would wait for it.
    told = sys.stderr if dist.get_rank() == 0 else open(os.devnull, "w")
    result = unittest.TextTestRunner(stream=told, failfast=True).run(suite)
    if not result.wasSuccessful() or result.testsRun == 0:
        for case, text in result.failures + result.errors:
            print(f"rank {dist.get_rank()}: {case}\n{text}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
