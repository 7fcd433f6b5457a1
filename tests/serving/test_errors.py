"""Error details shown to clients, in the format of each dialect."""

from woolly.errors import DeviceError
from woolly.serving.dialects import ole, openai
from woolly.serving.errors import ApiError, to_api_error


def test_internal_error_reveals_no_details():
    reported = to_api_error(OSError("/secret/path is broken"))
    assert reported.status == 500 and "secret" not in str(openai.DIALECT.error(reported))


def test_failed_gpu_is_reported_with_its_own_message():
    reported = to_api_error(DeviceError("the GPU failed", code="lost", remedy="load the model again"))
    assert (reported.status, reported.code, reported.retry_after) == (503, "device_failed", 5.0)
    assert reported.message == "the GPU failed; try again later"


def test_errors_have_the_format_of_their_dialect():
    error = ApiError(404, "model_not_found", "no such model", param="model", suggestion="list them", details={"a": 1})
    assert ole.DIALECT.error(error) == {
        "error": {
            "code": "model_not_found",
            "message": "no such model",
            "suggestion": "list them",
            "details": {"a": 1},
        }
    }
    assert openai.DIALECT.error(error) == {
        "error": {
            "message": "no such model; list them",
            "type": "not_found_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
