"""Functions of ours that steps of compiled chains call: name → `module:function`."""

_MODULES = {"workflows.inputs": "chains.inputs", "filesystem": "filesystem"}
"""Module as runs name it → module that has the function."""
_WRITTEN = {
    "workflows.inputs": ("value", "check"),
    "filesystem": (
        "get_allowed_paths", "list_directory", "read_file", "get_file_info", "write_file", "update_file", "delete_file", "create_directory",
    ),
}  # fmt: skip
_PLACES = {
    (written, name): f"cantata_frontends.langswarm.{_MODULES[written]}:{name}"
    for written, names in _WRITTEN.items()
    for name in names
}
FUNCTIONS = {
    **{f"cantata.builtin:langswarm_{name}": place for (_, name), place in _PLACES.items()},
    # still written: older workers know no other names
    **{f"cantata.frontends.langswarm.{written}:{name}": place for (written, name), place in _PLACES.items()},
}
