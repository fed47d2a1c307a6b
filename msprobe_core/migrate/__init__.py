"""What files that were written for the established tool mean here, field by field; nothing in them is executed."""

from msprobe_core.migrate.files import migrated
from msprobe_core.migrate.result import FieldMeaning, Migrated, MigratedFile, Standing

__all__ = ["FieldMeaning", "Migrated", "MigratedFile", "Standing", "migrated"]
