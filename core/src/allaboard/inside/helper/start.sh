# shellcheck shell=sh
# The helper of a member whose command is no Python: `start.py` stands around it where the image has a python3,
# which says all of it. Else the Pythons that the command starts can be asked for their stacks all the same.
# The command takes the place of this shell: its pid, its signals and its exit code are its own.
here=${0%/*}
if [ "${ALLABOARD_STARTUP-}" != off ]; then
    # PYTHONHOME is one Python's: another one does not even start with it.
    if [ -z "${PYTHONHOME-}" ] && command -v python3 >/dev/null 2>&1; then
        exec python3 -s -S "$here/start.py" "$@"
    fi
    PYTHONPATH=$here/python${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
fi
if [ "${ALLABOARD_HELP_CHECKPOINTS-}" = fill ]; then
    echo 'allaboard: {checkpoint} cannot be filled in: this image has no python3 on its PATH' >&2
    exit 1
fi
if [ -n "${ALLABOARD_HELP_COPIES-}" ]; then
    echo 'allaboard: the checkpoints are not copied: this image has no python3 on its PATH' >&2
fi
exec "$@"
