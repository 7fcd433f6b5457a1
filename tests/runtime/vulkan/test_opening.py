"""Openings of a VulkanDevice that fail: nothing is left behind, and the next one may succeed."""

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime.vulkan.test_device import Counting
from woolly.errors import DeviceError, RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Options, get_backend
from woolly.runtime.backends import Fallback
from woolly.runtime.split import SplitBackend
from woolly.runtime.vulkan import device as driving
from woolly.runtime.vulkan.backend import VulkanBackend
from woolly.runtime.vulkan.libvulkan import open_driver
from woolly.runtime.vulkan.physical_device import Physical, find_physical


def test_failed_opening_leaves_nothing_behind(opened):
    whole = Counting(open_driver(), 0)
    driving.open_device(driver=whole).close()
    assert whole.n_made > 8 and whole.alive == 0
    for fails in range(1, whole.n_made + 1):
        driver = Counting(open_driver(), fails)
        with suppress(DeviceError, RequestError):  # memory may be there at the second try
            driving.open_device(driver=driver).close()
        assert driver.n_made >= fails and driver.alive == 0, fails


class Forgetful(set):
    """Remembers nothing."""

    def add(self, one):
        pass


def give_units(monkeypatch, folder, driver, tried):
    """The device has matrix units, which no process tried; `tried` is called with it when they are."""
    monkeypatch.setenv("WOOLLY_HOME", str(folder))
    units = replace(find_physical(driver, 0), has_matrices=True)
    monkeypatch.setattr(Physical, "extensions", [])
    monkeypatch.setattr(driving, "find_physical", lambda *_: units)
    monkeypatch.setattr(driving, "choose_variant", lambda *_: "plain")
    monkeypatch.setattr(driving.cooperative_matrix, "is_exact", tried)


def test_gpu_lost_in_its_matrix_units_is_opened_without_them(opened, monkeypatch, tmp_path):
    driver, trials = Counting(open_driver(), 0), []

    def lose(device):
        trials.append(device.physical.has_matrices)
        driver._codes = {"vkGetSemaphoreCounterValue": 0, "vkWaitSemaphores": -4}
        device.mark()
        device.wait()

    give_units(monkeypatch, tmp_path, driver, lose)
    monkeypatch.setattr(driving, "_lost_units", set())
    with pytest.raises(DeviceError, match="failed while its arithmetic was tested"):
        driving.open_device(driver=driver)
    driver._codes = {}
    for _ in range(2):
        device = driving.open_device(driver=driver)
        assert not device.architecture and not device.physical.has_matrices
        device.close()
    assert trials == [True] and driver.alive == 0
    other = replace(driving.find_physical(), number=1)
    monkeypatch.setattr(driving, "find_physical", lambda *_: other)
    with pytest.raises(DeviceError, match="failed while its arithmetic was tested"):  # another has units until it fails
        driving.open_device(driver=driver)
    assert trials == [True, True] and driver.alive == 0


def test_matrix_units_are_probed_at_every_opening(opened, monkeypatch, tmp_path):
    driver, answers = Counting(open_driver(), 0), [False, True, False]
    give_units(monkeypatch, tmp_path, driver, lambda _: answers.pop(0))
    for expected in (False, True, False):
        device = driving.open_device(driver=driver)
        assert bool(device.architecture) == expected
        device.close()
    assert answers == []


@pytest.mark.parametrize("where", ["probe", "matrices"])
def test_gpu_lost_while_opening_can_be_opened_again(opened, monkeypatch, tmp_path, caplog, where):
    driver = Counting(open_driver(), 0)
    lost = {"vkGetSemaphoreCounterValue": 0, "vkWaitSemaphores": -4}

    def lose(device):
        driver._codes = lost
        device.mark()
        device.wait()

    if where == "matrices":
        give_units(monkeypatch, tmp_path, driver, lose)
        monkeypatch.setattr(driving, "_lost_units", Forgetful())  # an opening that is the first again
    else:
        driver._codes = lost
    sentence = "failed while its arithmetic was tested: the GPU was lost in vkWaitSemaphores: the driver reset it; try"
    with pytest.raises(DeviceError, match=sentence) as caught:
        driving.open_device(driver=driver)
    assert caught.value.code == "refused" and driver.alive == 0
    tiny = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with open_gguf(tiny) as file:
        gpu = SplitBackend(VulkanBackend(lambda *_: driving.open_device(driver=driver)), False)
        program = Fallback([gpu, get_backend("cpu")]).compile(trace(file), file.tensors, Options(threads=1))
        assert program.about.backend == "cpu" and caplog.text.count("vulkan is not used: ") == 1
        program.close()
    monkeypatch.setattr(driving.cooperative_matrix, "is_exact", lambda _: False)
    driver._codes = {}
    driving.open_device(driver=driver).close()
    assert driver.alive == 0
