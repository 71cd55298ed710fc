use std::collections::BTreeSet;

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Client, Program, Random, Reference, Server};

use crate::testing::{World, check, random};
use evenkeel_command::table::table;
use evenkeel_command::{Flags, specs};

const NO_KEYS: &str = "-NOPERM No permissions to access a key";
const NO_CHANNELS: &str = "-NOPERM No permissions to access a channel";

fn no_command(name: &str) -> String {
    format!("-NOPERM User ann has no permissions to run the '{name}' command")
}

/// The default user, and another user on connection `a`.
fn check_as(rules: &str, text: &str) {
    check(&format!(
        "
        > ACL SETUSER ann on >pw {rules}     < OK
        a> AUTH ann pw
        a< OK
        {text}
        "
    ));
}

#[test]
fn authentication_and_default_user() {
    check(
        "
        > ACL WHOAMI                         < \"default\"
        > AUTH pw
        < -ERR AUTH <password> called without any password configured for the default user. Are you sure \
            your configuration is correct?
        > AUTH a b c                         < -ERR syntax error
        > AUTH default anything              < OK
        > ACL SETUSER ann >pw                < OK
        > AUTH ann pw                        < -WRONGPASS invalid username-password pair or user is disabled.
        > ACL SETUSER ann on                 < OK
        > AUTH ann other                     < -WRONGPASS invalid username-password pair or user is disabled.
        > AUTH nobody pw                     < -WRONGPASS invalid username-password pair or user is disabled.
        > ACL SETUSER ann +acl|whoami        < OK
        a> AUTH ann pw
        a< OK
        a> ACL WHOAMI
        a< \"ann\"
        > CLIENT LIST                        < \"*user=ann*\"
        a> HELLO 2 AUTH default x SETNAME n
        a< [*]
        a> ACL WHOAMI
        a< \"default\"
        a> RESET
        a< RESET
        > ACL SETUSER ann nopass             < OK
        a> AUTH ann whatever
        a< OK
        > ACL SETUSER default off            < OK
        > PING                               < PONG
        b> PING
        b< -NOAUTH Authentication required.
        b> HELLO 3
        b< -NOAUTH HELLO must be called *
        b> NOSUCH
        b< -NOAUTH Authentication required.
        b> GET
        b< -NOAUTH Authentication required.
        b> AUTH ann x
        b< OK
        b> RESET
        b< RESET
        b> PING
        b< -NOAUTH Authentication required.
        > ACL SETUSER default on             < OK
        b> PING
        b< PONG
        ",
    );
}

#[test]
fn the_default_user_has_the_configured_password() {
    check(
        "
        > CONFIG SET requirepass secret      < OK
        > ACL LIST
        < [\"user default on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b ~\\* &\\* \
            +@all\"]
        a> PING
        a< -NOAUTH Authentication required.
        a> AUTH wrong
        a< -WRONGPASS invalid username-password pair or user is disabled.
        a> AUTH secret
        a< OK
        > ACL SETUSER default >more          < OK
        b> AUTH default more
        b< OK
        > CONFIG GET requirepass             < [\"requirepass\", \"secret\"]
        > CONFIG SET requirepass ''          < OK
        c> PING
        c< PONG
        ",
    );
}

#[test]
fn commands_keys_and_channels() {
    check_as(
        "+set +mget +publish +subscribe +psubscribe ~a* %R~r* &c*",
        &format!(
            "
            a> SET a1 v
            a< OK
            a> SET r1 v
            a< {NO_KEYS}
            a> MGET a1 r1
            a< [\"v\", (nil)]
            a> MGET a1 x
            a< {NO_KEYS}
            a> GET a1
            a< {}
            a> CONFIG GET x
            a< {}
            a> NOSUCH
            a< -ERR unknown command *
            a> GET
            a< -ERR wrong number *
            a> PUBLISH c1 m
            a< :0
            a> PUBLISH d m
            a< {NO_CHANNELS}
            a> PSUBSCRIBE c1
            a< {NO_CHANNELS}
            a> PSUBSCRIBE c*
            a< [\"psubscribe\", \"c\\*\", :1]
            a> SUBSCRIBE c1 d
            a< {NO_CHANNELS}
            > ACL SETUSER ann allkeys allchannels +@all  < OK
            a> QUIT
            a< OK
            ",
            no_command("get"),
            no_command("config|get"),
        ),
    );
}

#[test]
fn changes_apply_from_the_next_command() {
    check_as(
        "+@all ~*",
        &format!(
            "
            a> SET k v
            a< OK
            > ACL SETUSER ann -set               < OK
            a> SET k w
            a< {}
            > ACL SETUSER ann +set resetkeys ~x  < OK
            a> SET k w
            a< {NO_KEYS}
            > ACL SETUSER ann off                < OK
            a> SET x w
            a< OK
            ",
            no_command("set")
        ),
    );
}

#[test]
fn transactions_are_checked_when_queued_and_when_run() {
    const CHANGED: &str = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and \
                           the EXEC call. This command is no longer allowed for the following reason:";
    check_as(
        "+set +multi +exec +publish ~a &c",
        &format!(
            "
            a> MULTI
            a< OK
            a> SET a 1
            a< QUEUED
            a> GET a
            a< {}
            a> EXEC
            a< -EXECABORT Transaction discarded because of previous errors.
            > EXISTS a                           < :0
            a> MULTI
            a< OK
            a> SET a 1
            a< QUEUED
            a> PUBLISH c m
            a< QUEUED
            > ACL SETUSER ann resetkeys ~b resetchannels < OK
            a> EXEC
            a< [{CHANGED} no permission to touch the specified keys, \
                {CHANGED} no permission to access one of the channels used as arguments]
            a> MULTI
            a< OK
            a> SET b 1
            a< QUEUED
            > ACL SETUSER ann -set               < OK
            a> EXEC
            a< [{CHANGED} no permission to execute the command or subcommand]
            a> MULTI
            a< OK
            > ACL SETUSER ann -exec              < OK
            a> EXEC
            a< -EXECABORT Transaction discarded because of: NOPERM User ann has no permissions to run the \
                'exec' command
            a> EXEC
            a< -EXECABORT Transaction discarded because of: NOPERM User ann has no permissions to run the \
                'exec' command
            ",
            no_command("get"),
        ),
    );
}

#[test]
fn scripts_have_the_permissions_of_their_caller() {
    check_as(
        "+set +eval +publish ~a",
        "
        a> EVAL \"return redis.call('set','a','1')\" 1 a
        a< OK
        a> EVAL \"return redis.call('set','b','1')\" 0
        a< -ERR ACL failure in script: No permissions to access a key script: *
        a> EVAL \"return redis.pcall('get','a')\" 0
        a< -ERR ACL failure in script: User ann has no permissions to run the 'get' command
        a> EVAL \"return redis.pcall('publish','c','m')\" 0
        a< -ERR ACL failure in script: No permissions to access a channel
        a> EVAL \"return 1\" 1 b
        a< -NOPERM No permissions to access a key
        a> EVAL \"return {redis.acl_check_cmd('set','a','1') and 1 or 0, \
            redis.acl_check_cmd('set','b','1') and 1 or 0, redis.acl_check_cmd('config','get','x') and 1 or \
            0}\" 0
        a< [:1, :0, :0]
        a> EVAL \"return redis.acl_check_cmd('config|get','x')\" 0
        a< -ERR Invalid command passed to *.acl_check_cmd() script: *
        > EXISTS b                           < :0
        ",
    );
}

#[test]
fn sort_by_pattern_needs_access_to_all_keys() {
    check_as(
        "+sort +sort_ro +rpush ~l ~w_*",
        "
        a> RPUSH l 2 1
        a< :2
        a> SORT l
        a< [\"1\", \"2\"]
        a> SORT l BY nosort
        a< [\"2\", \"1\"]
        a> SORT l BY w_*
        a< -ERR BY option of SORT denied due to insufficient ACL permissions.
        a> SORT_RO l BY nosort GET #
        a< -ERR GET option of SORT denied due to insufficient ACL permissions.
        > ACL SETUSER ann %W~*               < OK
        a> SORT l GET w_*
        a< -ERR GET option of SORT denied due to insufficient ACL permissions.
        > ACL SETUSER ann %R~*               < OK
        a> SORT l BY w_* GET w_*
        a< [(nil), (nil)]
        a> SORT l GET #
        a< [\"1\", \"2\"]
        ",
    );
}

/// The last STORE counts, so its destination must be permitted. Redis 7.0 looks at the first.
#[test]
fn the_effective_destination_must_be_permitted() {
    let no_key = "-NOPERM No permissions to access a key";
    World::new().check(&format!(
        "
        > ACL SETUSER ann on nopass +@all -@admin %R~src ~bob:*          < OK
        a> AUTH ann x
        a< OK
        > GEOADD src 1 2 m                                               < :1
        > SET victim precious                                            < OK
        a> GEORADIUS src 1 2 9 km STORE bob:x STORE victim
        a< {no_key}
        a> GEORADIUS src 1 2 9 km STOREDIST bob:x COUNT 1 STORE victim
        a< {no_key}
        a> GEORADIUS src 9 9 1 m STORE bob:x STOREDIST victim
        a< {no_key}
        a> GEORADIUSBYMEMBER src m 9 km STORE bob:x STORE victim
        a< {no_key}
        a> SORT bob:l STORE bob:x STORE victim
        a< {no_key}
        a> EVAL \"return redis.call('GEORADIUS','src','1','2','9','km','STORE','bob:x','STORE','victim')\" 0
        a< -ERR ACL failure in script: No permissions to access a key script: *
        > ACL DRYRUN ann GEORADIUS src 1 2 9 km STORE bob:x STORE victim
        < \"User ann has no permissions to access the 'victim' key\"
        > GET victim                                                     < \"precious\"
        a> GEORADIUS src 1 2 9 km STORE victim STORE bob:x
        a< :1
        a> GEORADIUSBYMEMBER src m 9 km STORE victim STOREDIST bob:x
        a< :1
        "
    ));
}

/// As in Redis 7.2; 7.0 serves clients that wait already.
#[test]
fn blocked_clients_are_checked_again_when_served() {
    World::new().check(&format!(
        "
        > ACL SETUSER ann on nopass +blpop ~l  < OK
        a> AUTH ann x
        a< OK
        a> BLPOP l 0
        > ACL SETUSER bob on                   < OK
        > RPUSH l 1                            < :1
        a< [\"l\", \"1\"]
        a> BLPOP l 0
        > ACL SETUSER ann resetkeys            < OK
        > RPUSH l 2                            < :1
        a< {NO_KEYS}
        > LRANGE l 0 -1                        < [\"2\"]
        "
    ));
}

#[test]
fn invalid_rules_are_refused() {
    const MODIFIER: &str = "-ERR Error in ACL SETUSER modifier";
    check(&format!(
        "
        > ACL SETUSER u +nosuch              < {MODIFIER} '+nosuch': Unknown command or category name in ACL
        > ACL SETUSER u -nosuch              < {MODIFIER} '-nosuch': Unknown command or category name in ACL
        > ACL SETUSER u +@nosuch             < {MODIFIER} '+@nosuch': Unknown command or category name in ACL
        > ACL SETUSER u +config|nosuch
        < {MODIFIER} '+config|nosuch': Unknown command or category name in ACL
        > ACL SETUSER u -get|x               < {MODIFIER} '-get|x': Unknown command or category name in ACL
        > ACL SETUSER u +get|x|y             < {MODIFIER} '+get|x|y': Unknown command or category name in ACL
        > ACL SETUSER u +config|get|x
        < {MODIFIER} '+config|get|x': Allowing first-arg of a subcommand is not supported
        > ACL SETUSER u +get|                < {MODIFIER} '+get|': Syntax error
        > ACL SETUSER u %X~a                 < {MODIFIER} '%X~a': Syntax error
        > ACL SETUSER u %~a                  < {MODIFIER} '%~a': Syntax error
        > ACL SETUSER u %RR~a                < {MODIFIER} '%RR~a': Syntax error
        > ACL SETUSER u '~a b'               < {MODIFIER} '~a b': Syntax error
        > ACL SETUSER u '&a b'               < {MODIFIER} '&a b': Syntax error
        > ACL SETUSER u allkeys ~x
        < {MODIFIER} '~x': Adding a pattern after the \\* pattern (or the 'allkeys' flag) is not valid and \
            does not have any effect. Try 'resetkeys' to start with an empty list of patterns
        > ACL SETUSER u allchannels &x
        < {MODIFIER} '&x': Adding a pattern after the \\* pattern (or the 'allchannels' flag) is not valid \
            and does not have any effect. Try 'resetchannels' to start with an empty list of channels
        > ACL SETUSER u <x
        < {MODIFIER} '<x': The password you are trying to remove from the user does not exist
        > ACL SETUSER u #x
        < {MODIFIER} '#x': The password hash must be exactly 64 characters and contain only lowercase \
            hexadecimal characters
        > ACL SETUSER u on blah +get         < {MODIFIER} 'blah': Syntax error
        > ACL SETUSER u (blah)               < {MODIFIER} '(blah)': Syntax error
        > ACL SETUSER u )                    < {MODIFIER} ')': Syntax error
        > ACL SETUSER u +get (+set           < -ERR Unmatched parenthesis in acl selector starting at '(+set'.
        > ACL SETUSER 'u v' on               < -ERR Usernames can't contain spaces or null characters
        > ACL USERS                          < [\"default\"]
        > ACL DELUSER default                < -ERR The 'default' user cannot be removed
        > ACL GETUSER u                      < (nil)
        > ACL DRYRUN u get x                 < -ERR User 'u' not found
        > ACL DRYRUN default nosuch          < -ERR Command 'nosuch' not found
        > ACL DRYRUN default config nosuch   < -ERR Command 'config' not found
        > ACL DRYRUN default get             < -ERR wrong number of arguments for 'get' command
        > ACL CAT nosuch                     < -ERR Unknown category 'nosuch'
        > ACL CAT a b
        < -ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP.
        > ACL LOG a b
        < -ERR unknown subcommand or wrong number of arguments for 'LOG'. Try ACL HELP.
        > ACL LOG x                          < -ERR value is not an integer or out of range
        > ACL GENPASS 0
        < -ERR ACL GENPASS argument must be the number of bits for the output password, \
            a positive number up to 4096
        > ACL GENPASS x                      < -ERR value is not an integer or out of range
        > ACL SAVE
        < -ERR This instance is not configured to use an ACL file. *
        > ACL LOAD
        < -ERR This instance is not configured to use an ACL file. *
        > ACL NOSUCH                         < -ERR unknown subcommand 'NOSUCH'. Try ACL HELP.
        > CLIENT KILL USER u                 < -ERR No such user 'u'
        "
    ));
}

#[test]
fn users_are_described() {
    check(
        "
        > ACL SETUSER u on >p %R~a ~b %W~a &c &c (+get ~x) '( %W~y )' ()  < OK
        > ACL GETUSER u
        < [\"flags\", [\"on\"], \"passwords\", \
            [\"148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940\"], \"commands\", \"-@all\", \
            \"keys\", \"~a ~b\", \"channels\", \"&c\", \"databases\", \"alldbs\", \"selectors\", \
            [[\"commands\", \"-@all +get\", \
            \"keys\", \"~x\", \"channels\", \"\", \"databases\", \"alldbs\"], [\"commands\", \"-@all\", \
            \"keys\", \"%W~y\", \"channels\", \"\", \"databases\", \"alldbs\"], [\"commands\", \"-@all\", \
            \"keys\", \"\", \"channels\", \"\", \"databases\", \"alldbs\"]]]
        > ACL LIST
        < [\"user default on nopass ~\\* &\\* +@all\", \"user u on \
            #148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940 ~a ~b resetchannels &c -@all \
            (~x resetchannels -@all +get) (%W~y resetchannels -@all) (resetchannels -@all)\"]
        > ACL SETUSER u <p nopass clearselectors allkeys +@all allchannels skip-sanitize-payload < OK
        > ACL GETUSER u
        < [\"flags\", [\"on\", \"nopass\"], \"passwords\", [], \"commands\", \
            \"+@all\", \"keys\", \"~\\*\", \"channels\", \"&\\*\", \"databases\", \"alldbs\", \
            \"selectors\", []]
        > ACL SETUSER u reset                      < OK
        > ACL GETUSER u
        < [\"flags\", [\"off\"], \"passwords\", [], \"commands\", \"-@all\", \"keys\", \
            \"\", \"channels\", \"\", \"databases\", \"alldbs\", \"selectors\", []]
        > CONFIG SET acl-pubsub-default allchannels < OK
        > ACL SETUSER v ()                         < OK
        > ACL GETUSER v
        < [\"flags\", [\"off\"], \"passwords\", [], \"commands\", \"-@all\", \"keys\", \"\", \"channels\", \
            \"&\\*\", \"databases\", \"alldbs\", \"selectors\", [[\"commands\", \"-@all\", \"keys\", \"\", \
            \"channels\", \"&\\*\", \"databases\", \"alldbs\"]]]
        > ACL SETUSER u reset                      < OK
        > ACL GETUSER u  < [*, \"channels\", \"&\\*\", *]
        > ACL USERS                                < [\"default\", \"u\", \"v\"]
        > ACL DELUSER u nosuch u                   < :1
        ",
    );
}

/// As Redis 7.2 writes them: in the order of the rules, without rules that a later rule makes void.
#[test]
fn rules_are_written_in_order() {
    let mut world = World::new();
    for (rules, text) in [
        ("+@all -@hash -@slow +hget", "+@all -@hash -@slow +hget"),
        ("+@all -@hash -@slow +hget -@hash", "+@all -@slow +hget -@hash"),
        ("+@all -@hash +@HASH", "+@all +@hash"),
        ("+client|id +client|list -client|id", "-@all +client|list -client|id"),
        ("+client|id +client|list +CLIENT", "-@all +client"),
        ("+client -client|id", "-@all +client -client|id"),
        ("+get -get +set", "-@all -get +set"),
        ("+get +getdel -get", "-@all +getdel -get"),
        ("+get +@all", "+@all"),
        ("+@all -get -@all +set", "-@all +set"),
        ("+select|0 +select|1 +select|0", "-@all +select|1 +select|0"),
        ("+select|0 -select", "-@all -select"),
        ("+SELECT|Ab", "-@all +select|ab"),
    ] {
        let words = rules.split(' ').map(|rule| format!("'{rule}'")).collect::<Vec<_>>().join(" ");
        assert_eq!(world.run(&format!("ACL SETUSER u reset {words}")), "OK");
        let reply = world.run("ACL GETUSER u");
        assert!(reply.contains(&format!("\"commands\", \"{text}\",")), "{rules}: {reply}");
    }
}

#[test]
fn first_arguments() {
    check_as(
        "+select|1 +debug|object",
        &format!(
            "
            a> SELECT 1
            a< OK
            a> SELECT 0
            a< {}
            a> DEBUG SLEEP 0
            a< {}
            > ACL SETUSER ann -select            < OK
            a> SELECT 1
            a< {}
            ",
            no_command("select"),
            no_command("debug"),
            no_command("select"),
        ),
    );
}

#[test]
fn refusals_are_logged() {
    check_as(
        "+set +multi +discard +eval +publish ~a",
        &format!(
            "
            > ACL LOG RESET                      < OK
            a> GET x
            a< {}
            a> GET y
            a< {0}
            a> SET b 1
            a< {NO_KEYS}
            a> PUBLISH c m
            a< {NO_CHANNELS}
            a> MULTI
            a< OK
            a> GET x
            a< {0}
            a> DISCARD
            a< OK
            a> EVAL \"return redis.pcall('set','z','1')\" 0
            a< -ERR ACL failure in script: *
            a> AUTH bob wrong
            a< -WRONGPASS *
            > ACL LOG 1
            < [[\"count\", :1, \"reason\", \"auth\", \"context\", \"toplevel\", \"object\", \"AUTH\", \
                \"username\", \"bob\", \"age-seconds\", *, \"client-info\", \"id=* user=ann *\"*]]
            > ACL LOG 2
            < [*, [\"count\", :1, \"reason\", \"key\", \"context\", \"lua\", \"object\", \"z\", \
                \"username\", \"ann\", *]]
            > ACL LOG 3
            < [*, *, [\"count\", :1, \"reason\", \"command\", \"context\", \"multi\", \"object\", \"get\", *]]
            > ACL LOG
            < [*, *, *, [*\"reason\", \"channel\", \"context\", \"toplevel\", \"object\", \"c\",*], \
                [*\"key\"*\"b\"*], [\"count\", :2, \"reason\", \"command\", \"context\", \"toplevel\", \
                \"object\", \"get\", *]]
            > ACL LOG 0                          < []
            > ACL LOG -5                         < []
            > ACL LOG RESET                      < OK
            > ACL LOG                            < []
            ",
            no_command("get")
        ),
    );
    World::new().check(&format!(
        "
        > ACL SETUSER ann on nopass          < OK
        a> AUTH ann x
        a< OK
        a> GET k
        a< {0}
        a> SET k v
        a< -NOPERM *
        ~ 1500ms
        a> GET k
        a< {0}
        > ACL LOG
        < [[\"count\", :2, *, \"age-seconds\", \"0*\", *, \"entry-id\", :0, \"timestamp-created\", :*, \
            \"timestamp-last-updated\", :*], [*\"age-seconds\", \"1.5\", *, \"entry-id\", :1, *]]
        > INFO stats
        < \"*acl_access_denied_auth:0\\r\\nacl_access_denied_cmd:3\\r\\nacl_access_denied_key:0\\r\\n*\"
        > CONFIG SET acllog-max-len 1        < OK
        > ACL LOG                            < [[\"count\", :2, *]]
        ~ 61s
        a> GET k
        a< {0}
        > ACL LOG 1                          < [[\"count\", :1, *\"entry-id\", :2, *]]
        ",
        no_command("get")
    ));
}

#[test]
fn passwords_are_kept_out_of_logs() {
    check(
        "
        > CONFIG SET slowlog-log-slower-than 0  < OK
        > SLOWLOG RESET                      < OK
        > ACL SETUSER ann on >secret         < OK
        > AUTH ann secret                    < OK
        > AUTH default x                     < OK
        > SLOWLOG GET
        < [[*\"AUTH\", \"(redacted)\", \"(redacted)\"*], [*\"AUTH\", \"(redacted)\", \"(redacted)\"*], \
            [*[\"ACL\", \"SETUSER\", \"(redacted)\", \"(redacted)\", \"(redacted)\"]*], *]
        ",
    );
}

/// A table without the commands of tests has only such names, as in Redis.
fn is_ours(name: &str) -> bool {
    !name.starts_with("test.")
}

/// All but the last, which is of arrays.
fn categories_of_redis() -> &'static [&'static str] {
    specs::CATEGORIES.split_last().expect("there are some").1
}

/// For every command that both servers have, the categories are Redis'.
#[test]
fn categories_match_redis() {
    let Some(oracle) = Program::oracle(Reference::Redis) else { return };
    let server = Server::start(&oracle, &[]);
    let (mut client, mut world) = (server.connect(), World::new());
    let ours = world.run("ACL CAT").replace(r#", "array""#, "");
    assert_eq!(ours, client.run("ACL CAT").to_string());
    let known: BTreeSet<String> = names(&client.run("COMMAND LIST"));
    let ours: BTreeSet<String> = names(&call(&mut world, "COMMAND LIST"));
    let both: BTreeSet<&String> = known.intersection(&ours).filter(|name| is_ours(name)).collect();
    assert!(both.len() > 300, "{}", both.len());
    for category in categories_of_redis() {
        let line = format!("ACL CAT {}", &category[1..]);
        let [ours, theirs] = [call(&mut world, &line), client.run(&line)].map(|list| {
            names(&list).into_iter().filter(|name| both.contains(name)).collect::<BTreeSet<String>>()
        });
        // WAIT is a blocking command since 7.2.
        let is_newer = |name: &&String| *category == "@blocking" && *name == "wait";
        let differ: Vec<_> = ours.symmetric_difference(&theirs).filter(|name| !is_newer(name)).collect();
        assert!(differ.is_empty(), "{category}: {differ:?}");
    }
}

/// Users' files from other servers can be read: a rule may name any command of a reference server.
#[test]
fn rules_may_name_absent_reference_commands() {
    let mut world = World::new();
    world.check(
        "
        > ACL SETUSER ann +CLUSTER|slots -readonly +asking +cluster -module|load < OK
        > ACL LIST
        < [\"user ann off *-@all -readonly +asking +cluster -module|load\", *]
        > ACL SETUSER ann +cluster|nosuch    < -ERR *Unknown command or category name in ACL
        > ACL SETUSER ann -sentinel          < -ERR *Unknown command or category name in ACL
        > ACL DRYRUN ann cluster slots       < OK
        > ACL DRYRUN ann get k               < \"*no permissions to run the 'get' command\"
        > ACL SETUSER ann -cluster|flushslot < OK
        > CLUSTER FLUSHSLOT 1                < -ERR This instance has cluster support disabled
        ",
    );
    for reference in [Reference::Redis, Reference::Valkey] {
        let Some(oracle) = Program::oracle(reference) else { continue };
        let known = names(&Server::start(&oracle, &[]).connect().run("COMMAND LIST"));
        for name in known {
            for sign in ["+", "-"] {
                let reply = world.run(&format!("ACL SETUSER bob {sign}{name}"));
                assert_eq!(reply, "OK", "{sign}{name} of {reference:?}");
            }
        }
    }
}

fn call(world: &mut World, line: &str) -> Value {
    use evenkeel_testkit::Target;
    world.call(&evenkeel_testkit::words::split(line).expect("a line")).expect("a reply")
}

fn names(list: &Value) -> BTreeSet<String> {
    let Value::Array(names) = list else { panic!("{list} is no list") };
    let text = |name: &Value| String::from_utf8_lossy(name.as_bytes().expect("text")).into_owned();
    names.iter().map(text).collect()
}

/// Random rules, most of which are right.
fn some_rules(random: &mut Random, commands: &[String]) -> Vec<String> {
    let rule = |random: &mut Random, depth: usize| -> String {
        let pattern =
            |random: &mut Random| random.pick(&["*", "a*", "?", "k[0-4]", "kk", "", "x"]).to_owned();
        match random.below(if depth == 0 { 16 } else { 11 }) {
            0 => format!("~{}", pattern(random)),
            1 => format!("%{}~{}", random.pick(&["R", "W", "rw", "WR", "x", ""]), pattern(random)),
            2 => format!("&{}", pattern(random)),
            3 | 4 => format!("{}{}", random.pick(&["+", "-"]), random.pick(categories_of_redis())),
            5..=8 => format!("{}{}", random.pick(&["+", "-"]), commands[random.below(commands.len())]),
            9 => random
                .pick(&[
                    "allkeys",
                    "resetkeys",
                    "allchannels",
                    "resetchannels",
                    "+@all",
                    "-@all",
                    "nocommands",
                ])
                .to_owned(),
            10 => format!(
                "+{}|{}",
                random.pick(&["get", "select", "config", "debug"]),
                random.pick(&["a", "0", "get"])
            ),
            11 => random.pick(&["on", "off", "nopass", "resetpass", "reset", "clearselectors"]).to_owned(),
            12 => format!("{}{}", random.pick(&[">", "<"]), random.pick(&["p", "q"])),
            13 => random
                .pick(&["sanitize-payload", "skip-sanitize-payload", "nonsense", "+", "(", "()"])
                .to_owned(),
            _ => "(".to_owned(),
        }
    };
    let mut rules = Vec::new();
    for _ in 0..1 + random.below(5) {
        let one = rule(random, 0);
        if one == "(" {
            let inner: Vec<String> = (0..1 + random.below(3)).map(|_| rule(random, 1)).collect();
            rules.push(format!("({})", inner.join(" ")));
        } else {
            rules.push(one);
        }
    }
    rules
}

/// A call with keys and channels that random rules may permit.
fn some_call(random: &mut Random) -> Vec<&'static str> {
    const CALLS: &[&str] = &[
        "get k1",
        "set k1 v",
        "set k1 v get",
        "set a v nx",
        "mget k1 kk",
        "mset a 1 b 2",
        "del k1 k9",
        "exists kk",
        "copy a k1",
        "rename k1 a",
        "lmove a kk left right",
        "sort k1 store a",
        "sort k1 by x*",
        "zunionstore a 2 k1 kk",
        "zunionstore a x k1 kk",
        "zunionstore a 9 k1 kk",
        "zinter 2 a k1",
        "eval x 1 k1",
        "eval x 0 k1",
        "eval_ro x 2 a kk",
        "eval x 9 k1",
        "fcall f 1 a",
        "xread count 1 streams a k1 0 0",
        "xreadgroup group g c streams a k9 > >",
        "xgroup create k1 g 0",
        "memory usage k9",
        "object encoding a",
        "bitfield k1 get u8 0",
        "bitfield k1 set u8 0 1",
        "bitfield_ro a get u8 0",
        "georadius a 1 2 3 m store k9",
        "georadius a 1 2 3 m storedist k1",
        "geosearchstore a k1 frommember m byradius 1 m",
        "migrate h 1 a 0 1",
        "migrate h 1 '' 0 1 keys a k9",
        "migrate h 1 '' 0 1 auth2 keys x keys a",
        "publish a m",
        "spublish k9 m",
        "subscribe a x",
        "psubscribe a*",
        "psubscribe *",
        "ssubscribe kk",
        "unsubscribe x",
        "punsubscribe *",
        "config get x",
        "config set x y",
        "select 0",
        "select 1",
        "debug a",
        "debug get",
        "client id",
        "client kill a",
        "acl whoami",
        "auth x",
        "hello 3",
        "reset",
        "ping",
        "info",
        "flushall",
        "multi",
        "exec",
        "watch k1 k9",
        "quit",
        "hexists k1 f",
        "strlen a",
        "touch kk",
        "type k9",
        "pfcount a k1",
        "pfmerge a k1",
        "getex k1 ex 1",
        "getdel a",
        "lmpop 2 a k1 left",
        "blmpop 1 2 a k9 left",
        "sintercard 2 a kk",
        "smove a k1 m",
        "blpop a k9 1",
        "restore a 0 x",
        "script exists x",
        "function list",
        "append k1 x",
        "setrange k1 0 x",
        "scan 0",
        "keys *",
        "dump k1",
        "xadd a * f v",
        "xack a g 1",
        "lpush k1 x",
        "lrange k1 0 1",
        "sdiffstore a k1 kk",
        "bitop not a k1",
        "lcs a k1",
        "command count",
        "time",
        "shutdown",
        "move k1 1",
        "expire a 1",
        "ttl k9",
        "zadd a 1 m",
        "zrangestore a k1 0 1",
    ];
    CALLS[random.below(CALLS.len())].split(' ').map(|word| if word == "''" { "" } else { word }).collect()
}

fn ask<A: AsRef<[u8]>>(world: &mut World, args: &[A]) -> String {
    use evenkeel_testkit::Target;
    let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_ref().to_vec()).collect();
    world.call(&args).expect("a reply").to_string()
}

/// Random users have the same rights as in Redis, and are refused for the same reasons; their saved rules
/// lead to the same users.
#[test]
fn random_rules_match_valkey() {
    let Some(oracle) = Program::oracle(Reference::Valkey) else { return };
    let server = Server::start(&oracle, &[]);
    let (mut client, mut world, mut random) = (server.connect(), World::new(), random());
    let known = names(&client.run("COMMAND LIST"));
    let commands: Vec<String> = table()
        .rows()
        .iter()
        .map(|row| row.lower_name())
        .filter(|name| known.contains(name) && is_ours(name))
        .collect();
    let mut permitted = 0;
    for round in 0..150 {
        let name = format!("u{}", round % 7);
        let rules = some_rules(&mut random, &commands);
        let set: Vec<String> =
            ["ACL", "SETUSER", &name].map(str::to_owned).into_iter().chain(rules).collect();
        assert_eq!(ask(&mut world, &set), client.call(&set).to_string(), "{set:?}");
        if !world.run("ACL USERS").contains(&name) {
            continue;
        }
        same_but_for_rules(&mut world, &mut client, &name);
        written_down_again(&mut world, &name);
        for _ in 0..12 {
            let call = some_call(&mut random);
            let dry: Vec<&str> = ["ACL", "DRYRUN", &name].into_iter().chain(call).collect();
            for name in [&name[..], "copy"] {
                let mut own = dry.clone();
                own[2] = name;
                let (ours, theirs) = (ask(&mut world, &own), client.call(&dry).to_string());
                let theirs = theirs.replace(&format!("User {} ", dry[2]), &format!("User {name} "));
                assert_eq!(ours, theirs, "{set:?} {own:?}");
                permitted += usize::from(ours == "OK");
            }
        }
    }
    assert!(permitted > 300, "too few calls are permitted to show anything: {permitted}");
}

/// GETUSER replies the same, except for the rules of commands, which Redis 7.0 computes anew.
#[track_caller]
fn same_but_for_rules(world: &mut World, client: &mut Client, name: &str) {
    let line = format!("ACL GETUSER {name}");
    let without_rules = |value: Value| {
        let text = value.to_string();
        let parts = text.split("\"commands\", \"");
        parts
            .map(|part| part.split_once("\", \"keys\"").map_or(part.to_owned(), |(_, rest)| rest.to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(without_rules(call(world, &line)), without_rules(client.run(&line)));
}

/// Makes `copy` from the saved rules of a user.
#[track_caller]
fn written_down_again(world: &mut World, name: &str) {
    let lines = names(&call(world, "ACL LIST"));
    let start = format!("user {name} ");
    let line = lines.iter().find_map(|line| line.strip_prefix(&start)).expect("it is there");
    assert_eq!(ask(world, &["ACL", "DELUSER", "copy"]).len(), 2);
    let set: Vec<&str> = ["ACL", "SETUSER", "copy"].into_iter().chain(line.split(' ')).collect();
    assert_eq!(ask(world, &set), "OK", "{line}");
    let again = names(&call(world, "ACL LIST"));
    assert!(again.contains(&format!("user copy {line}")), "{line}: {again:?}");
}

/// Rules of arbitrary bytes are refused, and nothing worse.
#[test]
fn arbitrary_rules_do_not_panic() {
    let (mut world, mut random) = (World::new(), random());
    const PIECES: &[&str] = &[
        "+", "-", "@", "~", "%", "&", "(", ")", "|", "R", "W", "#", "!", ">", "<", " ", "get", "config",
        "all", "\"", "'", "\\x",
    ];
    for _ in 0..3000 {
        let mut rule: Vec<u8> = Vec::new();
        for _ in 0..random.below(8) {
            if random.chance(80) {
                rule.extend_from_slice(random.pick(PIECES).as_bytes());
            } else {
                rule.extend(random.bytes(3));
            }
        }
        let reply = ask(&mut world, &[&b"ACL"[..], b"SETUSER", b"u", &rule]);
        assert!(!reply.contains("internal error"), "{rule:?}: {reply}");
    }
    assert!(world.run("ACL LIST").contains("user u "));
}

/// Redis has the same list of commands before AUTH: they are never refused to a user.
#[test]
fn users_without_permissions_may_authenticate_again() {
    let free = table().rows().iter().filter(|row| row.flags.has(Flags::NO_AUTH)).map(|row| row.lower_name());
    assert_eq!(free.filter(|name| is_ours(name)).collect::<Vec<_>>(), ["quit", "reset", "hello", "auth"]);
    check_as(
        "",
        &format!(
            "
            a> PING
            a< {}
            a> HELLO 2
            a< [*]
            a> AUTH default x
            a< OK
            a> PING
            a< PONG
            ",
            no_command("ping")
        ),
    );
}
