"""`GradComparator`, which scripts for the gradient probe of mstt call."""

from __future__ import annotations

import os
from pathlib import Path

from msprobe_core.errors import CompareError
from msprobe_core.gradients.compare import compare_gradients
from msprobe_core.gradients.probe_layout import probed_ranks
from msprobe_core.report.gradients import refuse_foreign_results, write_comparison, write_rank


class GradComparator:
    """Compares signs of gradients; what is written is described in `msprobe_core.report.gradients`."""

    @staticmethod
    def compare_distributed(
        path1: str | os.PathLike[str],
        path2: str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        **_others: object,
    ) -> None:
        """Compare all ranks of two trainings, and write the results for each rank.

        Args:
            path1: What was recorded of the training under test.
            path2: That of the trusted one.
            output_dir: Directory of the results.
            _others: Ignored: the framework, which older releases took.

        Raises:
            CompareError: there are no gradients, or none in common.
            DumpError: something cannot be read.
            StoreError: a result cannot be written, or would replace a file of others.
        """
        result = compare_gradients(Path(path1), Path(path2))
        refuse_foreign_results(Path(output_dir), result.ranks)
        write_comparison(result, Path(output_dir))

    @staticmethod
    def compare(
        path1: str | os.PathLike[str],
        path2: str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        **_others: object,
    ) -> None:
        """Compare one rank of two trainings, and write its results into ``output_dir`` itself.

        Args:
            path1: Directory of the rank, such as ``rank0``, of the training under test.
            path2: That of the trusted one.
            output_dir: Directory of the results.
            _others: Ignored: the framework, which older releases took.

        Raises:
            CompareError: a directory is not that of one rank, or there is no gradient in common.
            DumpError: something cannot be read.
            StoreError: a result cannot be written.
        """
        for path in (path1, path2):
            if len(probed_ranks(Path(path))) > 1:
                raise CompareError(f"{path}: has several ranks; call GradComparator.compare_distributed")
        result = compare_gradients(Path(path1), Path(path2))
        write_rank(result, result.ranks[0], Path(output_dir))
