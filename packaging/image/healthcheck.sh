#!/bin/sh
# Health check of the image: the server answers, be it with a request for a password. EVENKEEL_HEALTH_ARGS has
# options for redis-cli, such as "-p 7000" or "--tls --cacert /tls/ca.crt".
# shellcheck disable=SC2086
reply=$(redis-cli ${EVENKEEL_HEALTH_ARGS-} ping 2>&1) || exit 1
case $reply in
    PONG | *NOAUTH* | *NOPERM* | *WRONGPASS* | *MASTERDOWN* | *BUSY*) exit 0 ;;
esac
echo "$reply"
exit 1
