"""The card of `eagle`."""

from augury.methods.bands import measured
from augury.methods.fits import one_layer, same_width, state_and_token
from augury.methods.lengths import all_but_first, multiple_of_depth, predict_depth
from augury.methods.spec import HEAD_KEYS, PAIRS, GateRecipe, Method, Signs, SpeculatorType, Trained, UsualHead

EAGLE = Method(
    name="eagle",
    help="One decoder layer that continues the target's last hidden state, token by token.",
    drafter="augury.drafters.eagle:EagleDrafter",
    keys=HEAD_KEYS,
    weights="draft",
    features="last",
    signs=Signs(speculators={"eagle": SpeculatorType()}, architectures=("Eagle",), names=("eagle-",)),
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    check=same_width,
    own_context=False,
    extra_slots=all_but_first,
    lookahead=1,
    prefill_lookahead=1,
    vllm_tells_tokens=True,
    divided=True,
    band=measured(1.8, 2.2, 2.6, 3, "8B targets, chat", "vLLM's example test", "chat"),
    vllm_prefix="Eagle",
    vllm_classes={
        "EagleLlamaForCausalLM": ("0.8.4", None),
        "EagleMiniCPMForCausalLM": ("0.9.1", None),
        "EagleLlama4ForCausalLM": ("0.10", None),
        "EagleDeepSeekMTPModel": ("0.10.2", None),
        "EagleMistralLarge3ForCausalLM": ("0.12", None),
        "EagleCohereForCausalLM": ("0.21", None),
        "EagleMistralForCausalLM": ("0.21", None),
    },
    usual=UsualHead(joins=state_and_token),
    checkpoint=one_layer,
    gates={"eagle": GateRecipe("augury.train.eagle:train_eagle", 80)},
    published="vLLM reads them as they are",
    trained={"eagle": Trained(PAIRS, "augury.train.eagle:Eagle")},
)
