#!/bin/bash
# Sourced by shell tests that mount file systems, before they create files.

# enter_mount_namespace SCRIPT ARGUMENT...: run the script again in a separate mount namespace; skip
# the test where that is not permitted. Returns inside the namespace.
enter_mount_namespace() {
    [ "${IN_OWN_NAMESPACE:-}" != yes ] || return
    unshare --mount --propagation private true 2>/dev/null || {
        echo "skipped: making a mount namespace is not permitted"
        exit 77
    }
    IN_OWN_NAMESPACE=yes exec unshare --mount --propagation private "$@"
}
