//! Rules about databases, and the order of the checks.

use crate::testing::{World, check};

/// User `ann` on connection `a` has these rules.
fn check_as(rules: &str, text: &str) {
    check(&format!(
        "
        > ACL SETUSER ann on nopass ~* {rules}  < OK
        a> AUTH ann x
        a< OK
        {text}
        "
    ));
}

const NO_DATABASE: &str = "-NOPERM No permissions to access database";

#[test]
fn rules_about_databases_are_shown() {
    check(
        "
        > ACL SETUSER ann DB=3,1,2,1 (resetdbs +get) (db=0 ~x)        < OK
        > ACL LIST
        < [\"user ann off resetchannels db=1,2,3 -@all (resetchannels resetdbs -@all +get) \
            (~x resetchannels db=0 -@all)\", *]
        > ACL GETUSER ann
        < [*, \"channels\", \"\", \"databases\", \"db=1,2,3\", \"selectors\", [[*, \"databases\", \"\"], \
            [*, \"databases\", \"db=0\"]]]
        > ACL SETUSER ann alldbs clearselectors                       < OK
        > ACL LIST                            < [\"user ann off resetchannels -@all\", *]
        > ACL SETUSER ann db=4 reset                                  < OK
        > ACL GETUSER ann                     < [*, \"databases\", \"alldbs\", *]
        > ACL SETUSER ann db=0,99             < OK
        > ACL SETUSER ann db=
        < -ERR Error in ACL SETUSER modifier 'db=': Syntax error
        > ACL SETUSER ann db=1,,2
        < -ERR Error in ACL SETUSER modifier 'db=1,,2': Syntax error
        > ACL SETUSER ann db=x
        < -ERR Error in ACL SETUSER modifier 'db=x': Syntax error
        > ACL SETUSER ann db=-1
        < -ERR Error in ACL SETUSER modifier 'db=-1': The provided database ID is out of range
        > ACL SETUSER ann db=2147483648
        < -ERR Error in ACL SETUSER modifier 'db=2147483648': The provided database ID is out of range
        > ACL LIST                            < [\"user ann off resetchannels db=0,99 -@all\", *]
    ",
    );
}

#[test]
fn commands_stay_in_the_databases_of_their_user() {
    check_as(
        "+@all db=0,1",
        &format!(
            "
            a> SET k v
            a< OK
            a> SELECT 2
            a< {NO_DATABASE}
            a> SELECT 99
            a< -ERR DB index is out of range
            a> SELECT 1
            a< OK
            a> MOVE k 2
            a< {NO_DATABASE}
            a> SWAPDB 0 2
            a< {NO_DATABASE}
            a> COPY k l DB 1 DB 2
            a< {NO_DATABASE}
            a> COPY k l DB 2 DB 1
            a< {NO_DATABASE}
            a> COPY k l REPLACE DB 0
            a< :0
            a> FLUSHALL
            a< {NO_DATABASE}
            a> FLUSHDB
            a< OK
            > ACL SETUSER ann db=0                                    < OK
            a> GET k
            a< {NO_DATABASE}
            a> DBSIZE
            a< {NO_DATABASE}
            a> KEYS *
            a< {NO_DATABASE}
            a> MOVE k 0
            a< {NO_DATABASE}
            a> PING
            a< PONG
            a> EVAL \"return 1\" 0
            a< {NO_DATABASE}
            a> SELECT 0
            a< OK
            a> GET k
            a< \"v\"
            a> EVAL \"redis.call('SELECT', '1')\" 0
            a< -ERR ACL failure in script: No permissions to access database script: *
            > INFO stats                      < \"*\\nacl_access_denied_db:12\\r*\"
            "
        ),
    );
}

/// The commands of a transaction are judged in the database that they will run in.
#[test]
fn transactions_are_judged_where_they_run() {
    check_as(
        "+@all -@write db=0 (+@all ~* db=1)",
        "
        a> MULTI
        a< OK
        a> SELECT 1
        a< QUEUED
        a> SET k v
        a< QUEUED
        a> SELECT 0
        a< QUEUED
        a> GET k
        a< QUEUED
        a> EXEC
        a< [OK, OK, OK, (nil)]
        a> MULTI
        a< OK
        a> SET k v
        a< -NOPERM User ann has no permissions to run the 'set' command
        a> EXEC
        a< -EXECABORT *
        a> MULTI
        a< OK
        a> SELECT 1
        a< QUEUED
        a> GET k
        a< QUEUED
        > ACL SETUSER ann clearselectors                              < OK
        a> EXEC
        a< [-NOPERM ACLs rules changed between the moment *: no permission, (nil)]
        ",
    );
}

#[test]
fn refusals_name_the_database() {
    World::new().check(
        "
        > ACL SETUSER ann on nopass ~* +@all db=0                     < OK
        > ACL DRYRUN ann SELECT 2
        < \"User ann has no permissions to access database 2\"
        > ACL DRYRUN ann SWAPDB 0 3
        < \"User ann has no permissions to access database 3\"
        > ACL DRYRUN ann FLUSHALL
        < \"User ann has no permissions to access database FLUSHALL\"
        > ACL DRYRUN ann GET k                                        < OK
        > SELECT 1                                                    < OK
        > ACL DRYRUN ann GET k
        < \"User ann has no permissions to access database GET\"
        a> AUTH ann x
        a< OK
        a> SWAPDB 2 0
        a< -NOPERM No permissions to access database
        > ACL LOG
        < [[\"count\", :1, \"reason\", \"database\", \"context\", \"toplevel\", \"object\", \"2\", *]]
        a> FLUSHALL
        a< -NOPERM No permissions to access database
        > ACL LOG 1                           < [[*, \"object\", \"flushall\", *]]
    ",
    );
}

/// A command that waits is judged in its own database when it is served.
#[test]
fn a_waiting_command_keeps_its_database() {
    let mut world = World::new();
    world.check(
        "
        > ACL SETUSER ann on nopass ~* +@all  < OK
        a> AUTH ann x
        a< OK
        a> SELECT 1
        a< OK
        a> BLPOP l 0
        > ACL SETUSER ann db=1                < OK
        > SELECT 1                            < OK
        > RPUSH l one                         < :1
        a< [\"l\", \"one\"]
        a> BLPOP l 0
        > ACL SETUSER ann db=0                < OK
        > RPUSH l two                         < :1
        a< -NOPERM No permissions to access database
        > LRANGE l 0 -1                       < [\"two\"]
        > INFO commandstats
        < \"*\\ncmdstat_blpop:calls=1,*,rejected_calls=1,failed_calls=0\\r*\"
    ",
    );
}

/// A client that has not authenticated learns nothing about commands.
#[test]
fn authentication_comes_before_everything_else() {
    let no = "-NOAUTH Authentication required.";
    check(&format!(
        "
        > ACL SETUSER default >pw             < OK
        a> NOSUCH
        a< {no}
        a> GET
        a< {no}
        a> CONFIG nosuch
        a< {no}
        a> CONFIG
        a< {no}
        a> AUTH
        a< -ERR wrong number of arguments for 'auth' command
        a> AUTH pw
        a< OK
        a> NOSUCH
        a< -ERR unknown command *
    "
    ));
}
