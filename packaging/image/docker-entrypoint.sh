#!/bin/sh
# Entry point of the image, with the behaviour of the official images of Redis and Valkey:
#
#   an option, or a file *.conf, as first argument    are arguments of the server
#   the server started as root                        /data gets the server's user, which the server then has
#   the usual umask                                   becomes 0077
#   protected mode                                    is off, unless options or the file set it: without a
#                                                     published port, only containers of the same network
#                                                     reach the server
#
# SKIP_FIX_PERMS and SKIP_DROP_PRIVS leave out the second row; VALKEY_EXTRA_FLAGS has further options.
set -e

case ${1-} in
    -* | *.conf) set -- evenkeel "$@" ;;
esac

case ${1-} in
    evenkeel | redis-server | valkey-server) is_server=yes ;;
    *) is_server= ;;
esac
# `evenkeel top` and `evenkeel check` are tools.
case ${2-} in
    top | check | upgrade) is_server= ;;
esac

if [ -n "$is_server" ] && [ "$(id -u)" = 0 ] && [ -z "${SKIP_DROP_PRIVS-}" ]; then
    if [ -z "${SKIP_FIX_PERMS-}" ]; then
        find . ! -user evenkeel -exec chown evenkeel:evenkeel {} + ||
            echo "docker-entrypoint: the owner of some files in $PWD could not be changed" >&2
    fi
    exec setpriv --reuid=evenkeel --regid=evenkeel --clear-groups -- "$0" "$@"
fi

[ "$(umask)" != 0022 ] || umask 0077

if [ -n "$is_server" ]; then
    program=$1
    shift
    file=
    case ${1-} in
        '' | -*) ;;
        *) file=$1; shift ;;
    esac
    sets_mode=
    for arg in "$@"; do
        case $arg in
            --protected-mode* | --check-config | --sentinel | -h | --help | -v | --version) sets_mode=yes ;;
        esac
    done
    if [ -n "$file" ] && grep -qi '^[[:space:]]*protected-mode[[:space:]]' "$file" 2>/dev/null; then
        sets_mode=yes
    fi
    # Options come behind the file. `-`, for more configuration on the standard input, then is the last.
    stdin=
    if [ "${1-}" = - ]; then
        stdin=-
        shift
    fi
    [ -n "$sets_mode" ] || set -- --protected-mode no "$@"
    # As in the image of Valkey, the flags are split at blanks, and come last.
    # shellcheck disable=SC2086
    exec "$program" ${file:+"$file"} "$@" ${VALKEY_EXTRA_FLAGS-} ${stdin:+"$stdin"}
fi

exec "$@"
