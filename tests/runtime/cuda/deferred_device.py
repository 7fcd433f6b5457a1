"""DeferredDevice: an emulated GPU that does its work as late as a true one may, when someone waits for it."""

from collections import deque
from functools import partial

from tests.runtime.cuda.emulated import EmulatedDevice


class DeferredDevice(EmulatedDevice):
    """Emulated GPU that reads `send` buffers and fills `download` buffers only when the work runs."""

    def __init__(self, *sources):
        super().__init__(*sources)
        self._queue = deque()  # of calls, and of numbers of marks

    def _later(self, call):
        if self._queue is None:
            call()
        else:
            self._queue.append(call)

    def _do(self, mark=None):
        while self._queue:
            one = self._queue.popleft()
            if one == mark:
                return
            if not isinstance(one, int):
                one()

    def new_stream(self):
        other = super().new_stream()
        other._queue = None  # a queue of its own, whose work is done at once
        return other

    def free(self, address):
        self._later(partial(super().free, address))

    def upload(self, address, data):
        self._later(partial(super().upload, address, data.copy()))

    def send(self, address, pinned):
        self._later(partial(super().upload, address, pinned))

    def download(self, address, out):
        self._later(partial(super().download, address, out))

    def zero(self, address, n_bytes):
        self._later(partial(super().zero, address, n_bytes))

    def launch(self, *arguments):
        if self._recorded is not None:
            super().launch(*arguments)
        else:
            self._later(partial(super().launch, *arguments))

    def close(self):
        self._do()
        super().close()

    def wait(self):
        self._do()

    def mark(self):
        mark = super().mark()
        if self._queue is not None:
            self._queue.append(mark)
        return mark

    def reach(self, mark, is_soon=False):
        self._do(mark)
