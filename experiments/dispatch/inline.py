"""Groups in the launching process."""

import threading
from collections.abc import Sequence

from experiments.execute import Watcher, execute
from experiments.group import Group


class Inline:
    """Runs every group here, as many members at a time as the layout has threads."""

    traced = ()
    package = None  # that has to be installed
    is_elsewhere = False  # whether the launching process leaves the devices alone

    def execute(
        self, groups: Sequence[Group], stop: threading.Event, watcher: Watcher
    ) -> None:
        """Returns when every run is done or, once `stop` is set, saved."""
        execute(groups, stop, watcher)
