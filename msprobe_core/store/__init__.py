"""Run directories, written during training and read by all later commands. These names are public.

* Files of a run: paths as in `msprobe_core.store.layout`; `create_file` and `make_directory` create for the owner only.
* Tensors: opened without a framework and without executing code from the file; their elements are read on demand.
* Structs: `save_struct` and `load_struct` keep small typed records as JSON; concurrent readers see whole files.
* Samples: ``samples.json`` says which sample each row of a recorded stage is.
* Losses: ``updates.json`` has the losses and the norms of gradients of a stage that trains.
* Dumps: `recorded_units` goes through those of a run, also one with stages; `msprobe_core.comparison` reads
  one of any format, and `read_json_dump` one of ours; `ending_of` says whether it holds all of its step.
* Formats of plugins: `entry_json` gives the record of an entry, `FrameBuilder` makes rows of such records.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.store.ending import ending_of, sentence
    from msprobe_core.store.frame import FrameBuilder
    from msprobe_core.store.json_reader import JsonDump, read_json_dump
    from msprobe_core.store.json_writer import entry_json
    from msprobe_core.store.layout import (
        Unit,
        create_file,
        find_steps,
        find_units,
        make_directory,
        tensor_file_name,
        unit_directory,
    )
    from msprobe_core.store.results import refuse_foreign_json
    from msprobe_core.store.run_units import RecordedUnit, recorded_units, stages_in
    from msprobe_core.store.runs import units_of_step
    from msprobe_core.store.samples import (
        SAMPLES_FILE,
        BatchLayout,
        CallPhase,
        MicroBatch,
        Row,
        StageSamples,
        load_samples,
        sample_id,
        save_samples,
    )
    from msprobe_core.store.struct_files import load_struct, save_struct
    from msprobe_core.store.tensor_source import read_whole
    from msprobe_core.store.tensor_values import DTYPES, SAFETENSORS_DTYPES, widen
    from msprobe_core.store.tensors import open_member, open_tensor, read_tensor, shard_keys
    from msprobe_core.store.training_metrics import MicroLoss, StageUpdates, Update, load_updates, save_updates
    from msprobe_core.untrusted.files import read_plain
    from msprobe_core.untrusted.paths import encode_json
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.store.ending": "ending_of sentence",
            "msprobe_core.store.frame": "FrameBuilder",
            "msprobe_core.store.json_reader": "JsonDump read_json_dump",
            "msprobe_core.store.struct_files": "load_struct save_struct",
            "msprobe_core.store.json_writer": "entry_json",
            "msprobe_core.store.layout": (
                "Unit create_file find_steps find_units make_directory tensor_file_name unit_directory"
            ),
            "msprobe_core.store.run_units": "RecordedUnit recorded_units stages_in",
            "msprobe_core.store.results": "refuse_foreign_json",
            "msprobe_core.store.runs": "units_of_step",
            "msprobe_core.store.samples": (
                "BatchLayout CallPhase MicroBatch Row SAMPLES_FILE StageSamples load_samples sample_id save_samples"
            ),
            "msprobe_core.store.tensor_source": "read_whole",
            "msprobe_core.store.tensor_values": "DTYPES SAFETENSORS_DTYPES widen",
            "msprobe_core.store.tensors": "open_member open_tensor read_tensor shard_keys",
            "msprobe_core.store.training_metrics": "MicroLoss StageUpdates Update load_updates save_updates",
            "msprobe_core.untrusted.files": "read_plain",
            "msprobe_core.untrusted.paths": "encode_json",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Files of a run
    "Unit", "create_file", "find_steps", "find_units", "make_directory", "tensor_file_name", "unit_directory",
    "units_of_step", "RecordedUnit", "recorded_units", "stages_in", "read_plain",
    # Tensors
    "DTYPES", "SAFETENSORS_DTYPES", "widen", "open_member", "open_tensor", "read_tensor", "shard_keys", "read_whole",
    # Structs and results
    "load_struct", "save_struct", "refuse_foreign_json", "encode_json",
    # Samples
    "SAMPLES_FILE", "BatchLayout", "CallPhase", "MicroBatch", "Row", "StageSamples", "load_samples", "sample_id",
    "save_samples",
    # Losses and norms of gradients
    "MicroLoss", "StageUpdates", "Update", "load_updates", "save_updates",
    # Dumps
    "JsonDump", "read_json_dump", "ending_of", "sentence",
    # Formats of plugins
    "FrameBuilder", "entry_json",
]  # fmt: skip
