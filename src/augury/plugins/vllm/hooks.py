"""Installs the hooks in a vLLM process; a hook that does not fit is left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from augury.plugins.vllm.coupled import RULE, DoesNotFit
from augury.plugins.vllm.releases import refusal

logger = logging.getLogger("vllm.augury")  # under vLLM's own logger, so that its settings and its handler apply
_installed = False


def install() -> None:
    """Put every hook in place, once; a release we do not know, or a hook that does not fit, is logged in one line."""
    global _installed
    if _installed:
        return
    _installed = True
    try:
        _install()
    except Exception as error:  # vLLM calls this in every process, whether it uses the plugin or not
        logger.warning("Augury's plugin changes nothing here: %s: %s.", type(error).__name__, error)


def _install() -> None:
    import vllm

    if (reason := refusal(vllm.__version__)) is not None:
        logger.warning(reason)
        return
    from augury.plugins.vllm import coupled_v1, coupled_v2, rule

    # The configuration takes the new rule only if both runners can carry it out: a rule that is accepted and not
    # followed would be worse than one that is refused.
    hooks: list[Callable[[], None]] = [coupled_v1.install, coupled_v2.install, rule.admit]
    try:
        for hook in hooks:
            hook()
    except (DoesNotFit, ImportError, AttributeError, OSError, TypeError) as error:  # as sources and signatures fail
        logger.warning('Augury\'s rule "%s" is not available in this vLLM: %s.', RULE, error)
