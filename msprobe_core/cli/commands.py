"""The core's own commands, registered like those of plugins."""

from __future__ import annotations

from collections.abc import Sequence

import click

from msprobe_core.cli.acc_check import acc_check, multi_acc_check, multi_run_ut, run_ut
from msprobe_core.cli.api_precision_compare import api_precision_compare
from msprobe_core.cli.bisect_steps import bisect_steps
from msprobe_core.cli.calibrate import calibrate
from msprobe_core.cli.check import check
from msprobe_core.cli.checkpoint import checkpoint
from msprobe_core.cli.compare import compare
from msprobe_core.cli.compile_check import compile_group
from msprobe_core.cli.completion import completion
from msprobe_core.cli.config_check import config_check
from msprobe_core.cli.confirm import confirm
from msprobe_core.cli.control import control
from msprobe_core.cli.convert import convert
from msprobe_core.cli.demo import demo
from msprobe_core.cli.doctor import doctor
from msprobe_core.cli.estimate import estimate
from msprobe_core.cli.export import export
from msprobe_core.cli.free_benchmark import free_benchmark
from msprobe_core.cli.gradients import gradients
from msprobe_core.cli.graph import graph, graph_visualize
from msprobe_core.cli.locate import locate
from msprobe_core.cli.merge import merge_result
from msprobe_core.cli.migrate import migrate
from msprobe_core.cli.monitor import monitor
from msprobe_core.cli.monitor_export import data2db
from msprobe_core.cli.op_generate import op_generate
from msprobe_core.cli.overflow import nan_analyze, overflow_check
from msprobe_core.cli.parse import identify, parse
from msprobe_core.cli.plugins import plugins
from msprobe_core.cli.responses import responses
from msprobe_core.cli.rl import rl
from msprobe_core.cli.run_overflow_check import run_overflow_check
from msprobe_core.cli.show_tensors import show
from msprobe_core.cli.twin import twin
from msprobe_core.cli.view import view
from msprobe_core.cli.weights import weights
from msprobe_core.hookspecs import hookimpl


@hookimpl
def msprobe_register_commands() -> Sequence[click.Command]:
    """Offer all of them."""
    return [
        acc_check,
        api_precision_compare,
        bisect_steps,
        calibrate,
        check,
        checkpoint,
        compare,
        compile_group,
        completion,
        config_check,
        confirm,
        control,
        convert,
        data2db,
        demo,
        doctor,
        estimate,
        export,
        free_benchmark,
        gradients,
        graph,
        graph_visualize,
        identify,
        locate,
        merge_result,
        migrate,
        monitor,
        multi_acc_check,
        multi_run_ut,
        nan_analyze,
        op_generate,
        overflow_check,
        parse,
        plugins,
        responses,
        rl,
        run_overflow_check,
        run_ut,
        show,
        twin,
        view,
        weights,
    ]
