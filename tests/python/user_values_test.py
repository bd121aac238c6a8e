"""What a program saves beside an engine comes back as it was."""

from __future__ import annotations

import collections
import enum
import itertools
import json
import math

import torch
import zero
from trained import RANK, WORLD, Case, made, stepped
from zero import _user_values

SCHEDULES = torch.optim.lr_scheduler


def there_and_back(user: object) -> object:
    return _user_values.values_of(_user_values.json_of(user), "there")


def as_text(value: object) -> object:
    """With the types of everything in it, and the bits of numbers."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(as_text(key), as_text(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [as_text(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(as_text, value)))
    return kind, value.hex() if isinstance(value, (float, bytes, bytearray)) else value


class UserValues(Case):
    def test_come_back_as_they_went_in(self) -> None:
        for which, user in enumerate((
            {1: "a", "1": "b", 2.5: "c", None: "d", (1, "x"): "e", b"f": 3},
            {True: 1}, {1: True}, {1.0: 0}, {},
            (1, (2, [3, ()])), [], "", 0, 0.0, -0.0, 1.0, False, "\ud800é\n",
            [math.inf, -math.inf, math.nan, 5e-324, 0.1],
            2**63 - 1, 2**63, -(2**64), 10**5000,
            {"a\udcff": "\udcff"}, ["\ud83d\ude00"],
            {1, 2, "a"}, frozenset({(1, 2)}), set(), b"\x00\xff", bytearray(b"12"),
            collections.Counter({30: 1, 80: 2}), collections.OrderedDict([("b", 1), ("a", 2)]),
            {"zero.type": "tuple", "items": [1]}, {"a": {"zero.type": 3}}, [{"zero.type": {"zero.type": (1,)}}],
        )):
            with self.subTest(which):
                self.assertEqual(as_text(there_and_back(user)), as_text(user))

    def test_of_json_are_the_json_that_they_were(self) -> None:
        user = {"epoch": 3, "best": [0.25, None, True], "name": "run", "more": {"x": -1}}
        self.assertEqual(_user_values.json_of(user), json.dumps(user))
        self.assertEqual(_user_values.json_of(None), "")

    def test_that_would_not_come_back_are_refused_by_name(self) -> None:
        Color = enum.IntEnum("Color", "red")
        Point = collections.namedtuple("Point", "x")
        itself: list = []
        itself.append({"again": itself})
        deep: list = []
        for _ in range(150):
            deep = [deep]
        for user, why in (
            ({"best": [1, torch.ones(1)]}, r"user\['best'\]\[1\] is of type torch.Tensor \(`tensors`"),
            ({"size": torch.Size([1])}, r"user\['size'\] is of type torch.Size \(tuple\(\)"),
            ({Color.red: 1}, r"the key .*red.* of user is of type .*Color \(int\(\)"),
            ([Point(1)], r"user\[0\] is of type .*Point \(tuple\(\)"),
            (collections.defaultdict(int), r"user is of type collections.defaultdict \(dict\(\)"),
            ({"f": len}, r"user\['f'\] is of type builtins.builtin_function_or_method"),
            ({1j}, r"user\{...\} is of type builtins.complex"),
            (itself, r"contains itself: user\[0\]\['again'\]"),
            (deep, "more than 100 values in each other"),
        ):
            with self.subTest(why), self.assertRaisesRegex(zero.ConfigError, why):
                _user_values.json_of(user)

    def test_that_are_damaged_are_told_of(self) -> None:
        for text in ("{", '{"zero.type": "complex"}', '{"zero.type": "tuple"}', '{"zero.type": "float", "bits": "0"}'):
            with self.subTest(text), self.assertRaisesRegex(zero.CheckpointError, "there: `user` cannot be read"):
                _user_values.values_of(text, "there")

    def schedules(self, optimizer: torch.optim.Optimizer) -> list:
        return [
            SCHEDULES.MultiStepLR(optimizer, [2, 4]),
            SCHEDULES.StepLR(optimizer, 2),
            SCHEDULES.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            SCHEDULES.OneCycleLR(optimizer, 0.1, 20),
            SCHEDULES.CosineAnnealingWarmRestarts(optimizer, 3),
            SCHEDULES.ReduceLROnPlateau(optimizer, patience=1),
            SCHEDULES.PolynomialLR(optimizer, 7),
            SCHEDULES.SequentialLR(
                optimizer, [SCHEDULES.LinearLR(optimizer, 0.5), SCHEDULES.MultiStepLR(optimizer, [1, 3])], [2]
            ),
            SCHEDULES.ChainedScheduler([SCHEDULES.ExponentialLR(optimizer, 0.9), SCHEDULES.ConstantLR(optimizer)]),
        ]

    def test_schedules_of_pytorch_go_on(self) -> None:
        """Each alone, from a checkpoint, beside one that was not interrupted."""
        folder = self.folder()
        for which in range(len(self.schedules(torch.optim.SGD([torch.ones(1)], 0.1, momentum=0.9)))):
            model, place = made(), folder / str(which)
            with zero.Engine(model, "zero3", zero.SGD(0.1, momentum=0.9)) as engine:
                schedule = self.schedules(engine.optimizer)[which]
                engine.optimizer.param_groups[0]["lr"] = 0.1
                for _ in range(2):
                    schedule.step(*([1.0] if isinstance(schedule, SCHEDULES.ReduceLROnPlateau) else []))
                stepped(engine, model)
                engine.save(place, user={"schedule": schedule.state_dict(), "lr": schedule.get_last_lr()})
                expected = self.rates(engine, schedule)
            other = made()
            with zero.Engine(other, "ddp", zero.SGD(0.1, momentum=0.9)) as engine:
                schedule = self.schedules(engine.optimizer)[which]
                user = engine.load(place).user
                schedule.load_state_dict(user["schedule"])
                for group, rate in zip(engine.optimizer.param_groups, user["lr"], strict=True):
                    group["lr"] = rate
                with self.subTest(type(schedule).__name__):
                    self.assertEqual(self.rates(engine, schedule), expected)

    def rates(self, engine: zero.Engine, schedule: object) -> list[float]:
        rates = []
        for _ in range(6):
            schedule.step(*([1.0] if isinstance(schedule, SCHEDULES.ReduceLROnPlateau) else []))
            rates.append(engine.optimizer.param_groups[0]["lr"])
        return rates

    def test_that_cannot_be_saved_on_one_rank_are_told_to_all(self) -> None:
        folder = self.folder()
        with zero.Engine(made(), "zero3", zero.SGD(0.1)) as engine:
            for which, (why, spoilt) in itertools.product(range(WORLD), (
                ("object", {"user": {"a": object()}}),
                ("Bool", {"tensors": {"a": torch.tensor([True])}}),
                ("as_tensor", {"tensors": {"a": [1.0]}}),
                ("meta", {"tensors": {"a": torch.ones(1, device="meta")}}),
                ("no name", {"tensors": {"\ud800": torch.ones(1)}}),
                ("sparse", {"tensors": {"a": torch.eye(2).to_sparse()}}),
            )):
                for background in (False, True):
                    given = spoilt if RANK == which else {}
                    kind = zero.ConfigError if RANK == which else zero.CheckpointError
                    with self.subTest(why), self.assertRaisesRegex(kind, why):
                        engine.save(folder, background=background, **given)
            engine.save(folder, user="\ud800")
            self.assertEqual(engine.load(folder).user, "\ud800")

    def test_come_back_on_every_rank(self) -> None:
        folder = self.folder()
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            stepped(engine, model)
            engine.save(folder, user={(1, 2): RANK})
            self.assertEqual(engine.load(folder).user, {(1, 2): 0})
        self.assertEqual(zero.find_checkpoint(folder).user, {(1, 2): 0})
