"""Who may do what (`--auth`): identities in a file, their keys and roles, and the guard that decides."""
