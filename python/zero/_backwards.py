"""How engines hear of loss.backward().

Whatever Python differentiates by, torch.Tensor.backward, torch.autograd.backward, a checkpoint's inner backward, goes
through one object, Variable._execution_engine. Ours is of its class and passes everything on; around a backward that
accumulates gradients, the engines of the thread take part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.variable import Variable

from . import _native


class _Heard(torch._C._ImperativeEngine):
    def run_backward(
        self,
        roots: Any,
        gradients: Any,
        keep_graph: bool,
        create_graph: bool,
        *rest: Any,
        accumulate_grad: bool = False,
        **named: Any,
    ) -> Any:
        def run() -> Any:
            return super(_Heard, self).run_backward(
                roots, gradients, keep_graph, create_graph, *rest, accumulate_grad=accumulate_grad, **named
            )

        if not accumulate_grad:
            return run()
        results: list[Any] = []
        _native.around_backward(roots, gradients, lambda: results.append(run()), bool(create_graph))
        return results[0]


def hear() -> None:
    """From now on, in the whole process. Threads without an engine go on as before."""
    if not isinstance(Variable._execution_engine, _Heard):
        Variable._execution_engine = _Heard()
