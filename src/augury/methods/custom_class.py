"""The card of `custom_class`."""

from augury.methods.spec import Method

CUSTOM_CLASS = Method(
    name="custom_class",
    help="Your own drafter, by import path.",
    drafter="augury.drafters.custom_class:CustomDrafter",
    keys=("model",),
    weights="import path",
    vllm_since="0.22",
    vllm_old_runner=True,
    vllm_async=False,
)
