#!/usr/bin/env bash
# The step of action.yml: annotations, what a reader sees in the log, and the exit code as an output.
set -uo pipefail

augury="${AUGURY:-$RUNNER_TEMP/augury-doctor/bin/augury}"
options=()
case "${FAIL_ON:-error}" in
    error) ;;
    warning) options+=(--strict) ;;
    *)
        echo "::error title=augury doctor::fail-on is error or warning, not ${FAIL_ON}"
        exit 2
        ;;
esac
[ -z "${VLLM_VERSION:-}" ] || options+=(--vllm-version "$VLLM_VERSION")
read -r -d '' -a paths <<< "${PATHS:-.}" || true # blanks and line ends separate them
[ "${#paths[@]}" -gt 0 ] || paths=(.)

# macOS has bash 3.2, to which an empty array is an unset variable.
"$augury" doctor "${paths[@]}" --skip-others ${options[@]+"${options[@]}"} ${SARIF_FILE:+--sarif "$SARIF_FILE"} --format github
code=$?
echo "exit-code=$code" >> "$GITHUB_OUTPUT"
exit "$code"
