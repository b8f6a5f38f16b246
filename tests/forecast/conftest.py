"""The small experiment that tests of a run and of its forecast share."""

from tiny_experiment import _digits_are_read_once as _digits_are_read_once
from tiny_experiment import tiny as tiny
