"""A plugin as authors wrote it for release 0.1. It is never edited: later releases have to load it as it is."""

import click

from msprobe_core.hookspecs import ApiMap, FrameworkOffer, TrainerStages, hookimpl


def load():
    raise ImportError("its framework is not installed here")


class Writer:
    name = "old_writer"

    def check(self):
        pass

    def open(self, directory, header):
        raise NotImplementedError


class Reader:
    name = "old_reader"

    def recognises(self, path):
        return path.suffix == ".old"

    def read(self, path):
        raise NotImplementedError


class Processor:
    name = "old_processor"

    def reduce(self, tensor, digest, reducer):
        reducer.statistics(tensor, digest)


class Executor:
    name = "old_executor"

    def check(self, options):
        pass

    def run(self, function, tasks, options):
        yield from enumerate(map(function, tasks))


class Metric:
    name = "OldMetric"

    def compare(self, target, golden):
        return 1.0


@click.command("old")
def command():
    """Do nothing."""


@hookimpl
def msprobe_register_frameworks():
    return [FrameworkOffer("old_framework", "old_framework", load)]


@hookimpl
def msprobe_register_writers():
    return [Writer()]


@hookimpl
def msprobe_register_readers():
    return [Reader()]


@hookimpl
def msprobe_register_processors():
    return [Processor()]


@hookimpl
def msprobe_register_executors():
    return [Executor()]


@hookimpl
def msprobe_register_metrics():
    return [Metric()]


@hookimpl
def msprobe_register_api_maps():
    return [ApiMap(name="old_map", apis={"Functional.dense": "Functional.linear"})]


@hookimpl
def msprobe_register_stages():
    return [TrainerStages("old_stages", {"train": "one step"})]


@hookimpl
def msprobe_register_commands():
    return [command]
