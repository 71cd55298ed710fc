//! The documentation of every command: what COMMAND DOCS, HELP and the hints of redis-cli are made of.
//!
//! A row gives the arguments as one line in the notation that users know from manuals; `arguments` turns it
//! into the tree that COMMAND DOCS sends, so what a reader sees and what a client library generates code from
//! cannot drift apart. The other road, the tree written out as constants, takes ten lines where this takes
//! one, and nobody reads it. Nothing here is on the path of a command: a line is parsed when somebody asks,
//! in a few microseconds.
//!
//! ```text
//! key                a value; its name decides the type (`kind_of_name`), or says it: `increment:double`
//! destkey#0          a key of the key specification 0; without `#`, keys count up from 0
//! addr=ip:port       named `addr` in the tree, shown as `ip:port`
//! NX                 a token: a word without small letters
//! EX seconds         a token takes the values that follow it: one, or several as a block
//! [x]                may be left out
//! <a | b>  [a | b]   one of them; `how=[a | b]` names it, else its members' names are joined
//! x [x ...]          x once or more; x is what precedes, word by word: `key value [key value ...]`
//! <a | b> ...        once or more;  [<a | b> ...]  any number of times, also none
//! ```
//!
//! COMMAND DOCS sends of each argument, in this order: name, type, display_text, key_spec_index, token, flags
//! (a set of simple strings) and arguments; what is absent here is left out there.

/// What is known about one command or, with a name such as `CLIENT|KILL`, about one subcommand.
#[derive(Debug)]
pub(crate) struct Doc {
    pub(crate) name: &'static str,
    /// Redis' own: string, hash, sorted-set, generic, transactions, ...
    pub(crate) group: &'static str,
    /// The version of Redis (up to 7.2) or Valkey (later) that brought the command.
    pub(crate) since: &'static str,
    pub(crate) complexity: &'static str,
    pub(crate) syntax: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) deprecated: Option<Deprecated>,
    /// For operators and tests rather than for applications: `syscmd` among the flags.
    pub(crate) system: bool,
    /// Nothing but a name that subcommands share; cannot be called alone.
    pub(crate) container: bool,
}

#[derive(Debug)]
pub(crate) struct Deprecated {
    pub(crate) since: &'static str,
    pub(crate) replaced_by: &'static str,
}

/// The documentation of a command; `name` in any case, subcommands as `client|kill`.
pub(crate) fn find(name: &str) -> Option<&'static Doc> {
    let upper = || name.bytes().map(|byte| byte.to_ascii_uppercase());
    let at = DOCS.binary_search_by(|doc| doc.name.bytes().cmp(upper())).ok()?;
    Some(&DOCS[at])
}

/// The subcommands of `container`, whose name comes in any case; none for a command that has none.
pub(crate) fn subcommands(container: &str) -> impl Iterator<Item = &'static Doc> {
    DOCS.iter().filter(move |doc| {
        doc.name.split_once('|').is_some_and(|(parent, _)| parent.eq_ignore_ascii_case(container))
    })
}

/// Replies to `<CONTAINER> HELP`.
pub(crate) fn reply_help(call: &mut super::Call<'_, '_>, container: &str) {
    let lines = help(container);
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.simple(line));
}

/// The lines that `<CONTAINER> HELP` answers with; none if there is no such container.
pub(crate) fn help(container: &str) -> Vec<String> {
    let Some(parent) = find(container) else { return Vec::new() };
    let mut topics: Vec<(String, &str)> = subcommands(parent.name)
        .map(|doc| (doc.usage(), doc.summary))
        .filter(|(usage, _)| usage != "HELP")
        .collect();
    if parent.name == "DEBUG" {
        topics.extend(DEBUG_TOPICS.iter().map(|(usage, summary)| (usage.to_string(), *summary)));
    }
    if topics.is_empty() {
        return Vec::new();
    }
    if !parent.container {
        topics.insert(0, ("(no subcommand)".to_string(), parent.summary));
    }
    topics.push(("HELP".to_string(), "Print this help."));
    let title = format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", parent.name);
    let lines = topics.into_iter().flat_map(|(usage, summary)| [usage, format!("    {summary}")]);
    std::iter::once(title).chain(lines).collect()
}

impl Doc {
    /// The tree that COMMAND DOCS sends under `arguments`.
    pub(crate) fn arguments(&self) -> Vec<Argument> {
        arguments(self.syntax).expect("a test parses the syntax of every row")
    }

    /// What COMMAND DOCS sends under `doc_flags`, which is left out when empty.
    pub(crate) fn doc_flags(&self) -> &'static [&'static str] {
        match (&self.deprecated, self.system) {
            (Some(_), true) => &["deprecated", "syscmd"],
            (Some(_), false) => &["deprecated"],
            (None, true) => &["syscmd"],
            (None, false) => &[],
        }
    }

    /// The call as a line for people, without the container: `LIST [TYPE ..]`, `SET key value [NX | XX] ..`.
    pub(crate) fn usage(&self) -> String {
        let name = self.name.rsplit('|').next().unwrap_or(self.name);
        let mut line = name.to_string();
        for argument in self.arguments() {
            line.push(' ');
            line += &argument.usage();
        }
        line
    }

    const fn deprecated(mut self, since: &'static str, replaced_by: &'static str) -> Doc {
        self.deprecated = Some(Deprecated { since, replaced_by });
        self
    }

    const fn system(mut self) -> Doc {
        self.system = true;
        self
    }
}

const fn doc(
    name: &'static str,
    group: &'static str,
    since: &'static str,
    complexity: &'static str,
    syntax: &'static str,
    summary: &'static str,
) -> Doc {
    Doc { name, group, since, complexity, syntax, summary, deprecated: None, system: false, container: false }
}

const fn container(
    name: &'static str,
    group: &'static str,
    since: &'static str,
    summary: &'static str,
) -> Doc {
    Doc { container: true, ..doc(name, group, since, "Depends on the subcommand", "", summary) }
}

/// `<CONTAINER>|HELP`, the same in every container.
const fn help_doc(name: &'static str, group: &'static str, since: &'static str) -> Doc {
    doc(name, group, since, "O(1)", "", "Lists the subcommands with a line about each.")
}

/// All documentation, sorted by the bytes of the name.
#[rustfmt::skip]
pub(crate) const DOCS: &[Doc] = &[
    container("ACL", "server", "6.0.0", "Commands about users and what they may do."),
    doc("ACL|CAT", "server", "6.0.0", "O(1), or O(N) with N commands", "[category]",
        "Lists the categories of commands, or the commands of one."),
    doc("ACL|DELUSER", "server", "6.0.0", "O(N) with N clients", "username [username ...]",
        "Deletes users and closes their connections."),
    doc("ACL|DRYRUN", "server", "7.0.0", "O(1)", "username command [arg [arg ...]]",
        "Says whether a user may run a command, and does not run it."),
    doc("ACL|GENPASS", "server", "6.0.0", "O(1)", "[bits:integer]",
        "Makes a password that nobody can guess."),
    doc("ACL|GETUSER", "server", "6.0.0", "O(N) with N rules of the user", "username",
        "Tells what a user may do."),
    help_doc("ACL|HELP", "server", "6.0.0"),
    doc("ACL|LIST", "server", "6.0.0", "O(N) with N users", "",
        "Lists all users as lines of a file of users."),
    doc("ACL|LOAD", "server", "6.0.0", "O(N) with N users", "",
        "Reads the file of users anew, all of it or, if anything is wrong, nothing."),
    doc("ACL|LOG", "server", "6.0.0", "O(N) with N entries", "operation=[count | RESET]",
        "Lists what was refused to whom, or forgets it."),
    doc("ACL|SAVE", "server", "6.0.0", "O(N) with N users", "",
        "Writes all users into the file of users."),
    doc("ACL|SETUSER", "server", "6.0.0", "O(N) with N rules and users", "username [rule [rule ...]]",
        "Makes a user, or changes one, by rules."),
    doc("ACL|USERS", "server", "6.0.0", "O(N) with N users", "",
        "Lists the names of all users."),
    doc("ACL|WHOAMI", "server", "6.0.0", "O(1)", "",
        "Tells the name of the user that the connection is."),
    doc("APPEND", "string", "2.0.0", "O(1), amortized", "key value",
        "Adds bytes at the end of a string, which is created if it is absent."),
    doc("ASKING", "cluster", "3.0.0", "O(1)", "",
        "Lets the next command go where its slot is being moved to."),
    doc("AUTH", "connection", "1.0.0", "O(N) with N passwords of the user", "[username] password",
        "Proves who the client is."),
    doc("BGREWRITEAOF", "server", "1.0.0", "O(1)", "",
        "Writes the append-only file anew, while clients go on."),
    doc("BGSAVE", "server", "1.0.0", "O(1)", "operation=[SCHEDULE | CANCEL]",
        "Takes a snapshot and writes it to disk, while clients go on."),
    doc("BITCOUNT", "bitmap", "2.6.0", "O(N) with N bytes counted", "key range=[start end unit=[BYTE | BIT]]",
        "Says how many bits of a string, or of a part of it, are one."),
    doc("BITFIELD", "bitmap", "3.2.0", "O(1) for each operation",
        "key operation=[<GET encoding offset | [OVERFLOW overflow=<WRAP | SAT | FAIL>] \
         write=<SET encoding offset value:integer | INCRBY encoding offset increment>> ...]",
        "Reads, writes and increments integers of any width within a string."),
    doc("BITFIELD_RO", "bitmap", "6.0.0", "O(1) for each operation",
        "key [GET encoding offset [GET encoding offset ...]]",
        "Reads integers of any width within a string, and never writes."),
    doc("BITOP", "bitmap", "2.6.0", "O(N) with N bytes of the longest string",
        "operation=<AND | OR | XOR | NOT> destkey key [key ...]",
        "Combines strings bit by bit and stores the outcome."),
    doc("BITPOS", "bitmap", "2.8.7", "O(N) with N bytes searched",
        "key bit range=[start end-unit=[end unit=[BYTE | BIT]]]",
        "Finds the place of the first one or the first zero in a string."),
    doc("BLMOVE", "list", "6.2.0", "O(1)",
        "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT> timeout:double",
        "Moves an element from an end of one list to an end of another, and waits for one if need be."),
    doc("BLMPOP", "list", "7.0.0", "O(N+M) with N keys and M elements taken",
        "timeout:double numkeys key [key ...] where=<LEFT | RIGHT> [COUNT count]",
        "Takes elements from the first list that has some, and waits for them if need be."),
    doc("BLPOP", "list", "2.0.0", "O(N) with N keys", "key [key ...] timeout:double",
        "Takes the first element of the first list that has one, and waits for it if need be."),
    doc("BRPOP", "list", "2.0.0", "O(N) with N keys", "key [key ...] timeout:double",
        "Takes the last element of the first list that has one, and waits for it if need be."),
    doc("BRPOPLPUSH", "list", "2.2.0", "O(1)", "source destination timeout:double",
        "Moves the last element of one list to the front of another, and waits for one if need be.")
        .deprecated("6.2.0", "`BLMOVE` with the `RIGHT` and `LEFT` arguments"),
    doc("BZMPOP", "sorted-set", "7.0.0", "O(K + M log N) with K keys and M members taken",
        "timeout:double numkeys key [key ...] where=<MIN | MAX> [COUNT count]",
        "Takes members off an end of the first sorted set that has any, or waits for one."),
    doc("BZPOPMAX", "sorted-set", "5.0.0", "O(log N) with N members",
        "key [key ...] timeout:double",
        "Takes the member with the highest score off a sorted set, or waits for one."),
    doc("BZPOPMIN", "sorted-set", "5.0.0", "O(log N) with N members",
        "key [key ...] timeout:double",
        "Takes the member with the lowest score off a sorted set, or waits for one."),
    container("CLIENT", "connection", "2.4.0", "Commands about client connections."),
    doc("CLIENT|CACHING", "connection", "6.0.0", "O(1)", "mode=<YES | NO>",
        "Tells whether the keys that the next command reads are to be tracked."),
    doc("CLIENT|GETNAME", "connection", "2.6.9", "O(1)", "",
        "Gives the name that this connection has set."),
    doc("CLIENT|GETREDIR", "connection", "6.0.0", "O(1)", "",
        "Gives the id of the client that receives this connection's invalidations."),
    help_doc("CLIENT|HELP", "connection", "5.0.0"),
    doc("CLIENT|ID", "connection", "5.0.0", "O(1)", "",
        "Gives the number of this connection, which no other ever gets."),
    doc("CLIENT|INFO", "connection", "6.2.0", "O(1)", "",
        "Describes this connection in one line."),
    doc("CLIENT|KILL", "connection", "2.4.0", "O(N) with N connections",
        "filter=<old-format=ip:port | new-format=<[ID client-id] | \
         [TYPE client-type=<NORMAL | MASTER | SLAVE | REPLICA | PUBSUB>] | [USER username] | \
         [ADDR addr=ip:port] | [LADDR laddr=ip:port] | [SKIPME skipme=<YES | NO>] | [MAXAGE maxage:integer]> ...>",
        "Closes the connections that fit every filter."),
    doc("CLIENT|LIST", "connection", "2.4.0", "O(N) with N connections",
        "[TYPE client-type=<NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]] \
         [USER username] [ADDR addr=ip:port] [LADDR laddr=ip:port] \
         [SKIPME skipme=<YES | NO>] [MAXAGE maxage:integer] [NAME name] [IDLE idle:integer] [FLAGS flags] \
         [LIB-NAME lib-name] [LIB-VER lib-ver] [DB db-id:integer] [IP ip]",
        "Describes the connections that fit every filter, a line each."),
    doc("CLIENT|NO-EVICT", "connection", "7.0.0", "O(1)", "enabled=<ON | OFF>",
        "Spares this connection, or not, when clients take more memory than they may."),
    doc("CLIENT|NO-TOUCH", "connection", "7.2.0", "O(1)", "enabled=<ON | OFF>",
        "Lets this connection's commands leave no trace in the keys' last use, or leave it again."),
    doc("CLIENT|PAUSE", "connection", "3.0.0", "O(1)", "timeout mode=[WRITE | ALL]",
        "Holds back all commands, or only the writing ones, for a number of milliseconds."),
    doc("CLIENT|REPLY", "connection", "3.2.0", "O(1)", "action=<ON | OFF | SKIP>",
        "Turns the replies on this connection on or off, or off for the next command."),
    doc("CLIENT|SETINFO", "connection", "7.2.0", "O(1)", "attr=<LIB-NAME libname | LIB-VER libver>",
        "Notes which client library, in which version, uses this connection."),
    doc("CLIENT|SETNAME", "connection", "2.6.9", "O(1)", "connection-name",
        "Gives this connection a name."),
    doc("CLIENT|TRACKING", "connection", "6.0.0", "O(1), O(N) with N prefixes",
        "status=<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] \
         [OPTIN] [OPTOUT] [NOLOOP]",
        "Starts or stops telling this connection which keys in its cache have changed."),
    doc("CLIENT|TRACKINGINFO", "connection", "6.2.0", "O(1)", "",
        "Describes how tracking is set up on this connection."),
    doc("CLIENT|UNBLOCK", "connection", "5.0.0", "O(log N) with N connections",
        "client-id unblock-type=[TIMEOUT | ERROR]",
        "Wakes a client that waits in a blocking command."),
    doc("CLIENT|UNPAUSE", "connection", "6.2.0", "O(N) with N paused clients", "",
        "Ends a pause and lets the commands that were held back run."),
    container("CLUSTER", "cluster", "3.0.0", "Commands about a cluster's nodes and slots; there is no cluster mode."),
    doc("CLUSTER|ADDSLOTS", "cluster", "3.0.0", "O(N) with N slots", "slot:integer [slot:integer ...]",
        "Gives slots to a node."),
    doc("CLUSTER|ADDSLOTSRANGE", "cluster", "7.0.0", "O(N) with N slots",
        "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
        "Gives ranges of slots to a node."),
    doc("CLUSTER|BUMPEPOCH", "cluster", "3.0.0", "O(1)", "",
        "Advances a cluster's epoch."),
    doc("CLUSTER|CANCELSLOTMIGRATIONS", "cluster", "9.0.0", "O(N) with N moves", "",
        "Gives up all moves of slots."),
    doc("CLUSTER|COUNT-FAILURE-REPORTS", "cluster", "3.0.0", "O(N) with N reports", "node-id",
        "Counts the nodes that report another one as failing."),
    doc("CLUSTER|COUNTKEYSINSLOT", "cluster", "3.0.0", "O(1)", "slot:integer",
        "Counts the keys of a slot."),
    doc("CLUSTER|DELSLOTS", "cluster", "3.0.0", "O(N) with N slots", "slot:integer [slot:integer ...]",
        "Takes slots from a node."),
    doc("CLUSTER|DELSLOTSRANGE", "cluster", "7.0.0", "O(N) with N slots",
        "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
        "Takes ranges of slots from a node."),
    doc("CLUSTER|FAILOVER", "cluster", "3.0.0", "O(1)", "options=[FORCE | TAKEOVER]",
        "Makes a replica the primary of its slots."),
    doc("CLUSTER|FLUSHSLOTS", "cluster", "3.0.0", "O(1)", "",
        "Takes all slots from a node."),
    doc("CLUSTER|FORGET", "cluster", "3.0.0", "O(1)", "node-id",
        "Removes a node from those that are known."),
    doc("CLUSTER|GETKEYSINSLOT", "cluster", "3.0.0", "O(N) with N keys returned", "slot:integer count",
        "Gives keys of a slot."),
    doc("CLUSTER|GETSLOTMIGRATIONS", "cluster", "9.0.0", "O(N) with N moves", "",
        "Describes the moves of slots."),
    help_doc("CLUSTER|HELP", "cluster", "5.0.0"),
    doc("CLUSTER|INFO", "cluster", "3.0.0", "O(1)", "",
        "Describes the state of a node."),
    doc("CLUSTER|KEYSLOT", "cluster", "3.0.0", "O(N) with N bytes of the key", "key:string",
        "Tells the slot of a key."),
    doc("CLUSTER|LINKS", "cluster", "7.0.0", "O(N) with N nodes", "",
        "Lists the connections between nodes."),
    doc("CLUSTER|MEET", "cluster", "3.0.0", "O(1)", "ip port:integer [cluster-bus-port:integer]",
        "Makes a node known to another one."),
    doc("CLUSTER|MIGRATESLOTS", "cluster", "9.0.0", "O(N) with N slots", "args [args ...]",
        "Moves slots to other nodes."),
    doc("CLUSTER|MYID", "cluster", "3.0.0", "O(1)", "",
        "Tells the id of a node."),
    doc("CLUSTER|MYSHARDID", "cluster", "7.2.0", "O(1)", "",
        "Tells the id of a node's shard."),
    doc("CLUSTER|NODES", "cluster", "3.0.0", "O(N) with N nodes", "",
        "Describes all nodes, one a line."),
    doc("CLUSTER|REPLICAS", "cluster", "5.0.0", "O(N) with N replicas", "node-id",
        "Lists the replicas of a node."),
    doc("CLUSTER|REPLICATE", "cluster", "3.0.0", "O(1)", "node-id",
        "Makes a node the replica of another one."),
    doc("CLUSTER|RESET", "cluster", "3.0.0", "O(N) with N nodes", "reset-type=[HARD | SOFT]",
        "Makes a node forget its cluster."),
    doc("CLUSTER|SAVECONFIG", "cluster", "3.0.0", "O(1)", "",
        "Writes what a node knows of its cluster to disk."),
    doc("CLUSTER|SET-CONFIG-EPOCH", "cluster", "3.0.0", "O(1)", "config-epoch:integer",
        "Sets the epoch of a new node."),
    doc("CLUSTER|SETSLOT", "cluster", "3.0.0", "O(1)",
        "slot:integer subcommand=<IMPORTING importing=node-id | MIGRATING migrating=node-id | NODE node=node-id | STABLE>",
        "Gives a slot to a node, or begins or ends its move."),
    doc("CLUSTER|SHARDS", "cluster", "7.0.0", "O(N) with N nodes", "",
        "Says which nodes have which slots, shard by shard."),
    doc("CLUSTER|SLAVES", "cluster", "3.0.0", "O(N) with N replicas", "node-id",
        "Lists the replicas of a node.")
        .deprecated("5.0.0", "`CLUSTER REPLICAS`"),
    doc("CLUSTER|SLOT-STATS", "cluster", "8.0.0", "O(N) with N slots", "args [args ...]",
        "Says how much slots are used."),
    doc("CLUSTER|SLOTS", "cluster", "3.0.0", "O(N) with N nodes", "",
        "Says which nodes have which slots.")
        .deprecated("7.0.0", "`CLUSTER SHARDS`"),
    doc("COMMAND", "server", "2.8.13", "O(N) with N commands", "",
        "Describes all commands as client libraries need it: arity, flags, keys."),
    container("COMMANDLOG", "server", "8.1.0", "Commands about the logs of commands that were slow or large."),
    doc("COMMANDLOG|GET", "server", "8.1.0", "O(N) with N entries returned",
        "count type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Gives a log's newest entries, all for -1; with STAGES behind its name, also where the time went."),
    help_doc("COMMANDLOG|HELP", "server", "8.1.0"),
    doc("COMMANDLOG|LEN", "server", "8.1.0", "O(1)", "type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Says how many entries a log has."),
    doc("COMMANDLOG|RESET", "server", "8.1.0", "O(N) with N entries", "type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Empties a log."),
    doc("COMMAND|COUNT", "server", "2.8.13", "O(1)", "",
        "Says how many commands there are."),
    doc("COMMAND|DOCS", "server", "7.0.0", "O(N) with N commands asked for",
        "[command-name [command-name ...]]",
        "Gives the documentation of the named commands, or of all."),
    doc("COMMAND|GETKEYS", "server", "2.8.13", "O(N) with N arguments", "command [arg [arg ...]]",
        "Names the keys that a complete command would use."),
    doc("COMMAND|GETKEYSANDFLAGS", "server", "7.0.0", "O(N) with N arguments", "command [arg [arg ...]]",
        "Names the keys that a complete command would use, and what it would do with each."),
    help_doc("COMMAND|HELP", "server", "5.0.0"),
    doc("COMMAND|INFO", "server", "2.8.13", "O(N) with N commands asked for",
        "[command-name [command-name ...]]",
        "Describes the named commands, or all, as COMMAND does."),
    doc("COMMAND|LIST", "server", "7.0.0", "O(N) with N commands",
        "[FILTERBY filterby=<MODULE module-name | ACLCAT category | PATTERN pattern>]",
        "Names all commands, or those that pass a filter."),
    container("CONFIG", "server", "2.0.0", "Commands about the server's configuration."),
    doc("CONFIG|GET", "server", "2.0.0", "O(N) with N patterns", "parameter [parameter ...]",
        "Gives the settings whose names match one of the patterns, with their values."),
    help_doc("CONFIG|HELP", "server", "5.0.0"),
    doc("CONFIG|RESETSTAT", "server", "2.0.0", "O(1)", "",
        "Starts the counters that INFO shows from zero."),
    doc("CONFIG|REWRITE", "server", "2.8.0", "O(N) with N lines of the file", "",
        "Writes the settings in force into the configuration file, whose comments stay."),
    doc("CONFIG|SET", "server", "2.0.0", "O(N) with N settings", "parameter value [parameter value ...]",
        "Changes settings while the server runs, all of them or, if one is refused, none."),
    doc("COPY", "generic", "6.2.0", "O(N) with N elements, O(1) for a string",
        "source destination [DB destination-db] [REPLACE]",
        "Stores a copy of a value under another key."),
    doc("DBSIZE", "server", "1.0.0", "O(1)", "",
        "Says how many keys the selected database holds."),
    container("DEBUG", "server", "1.0.0", "Commands for testing the server itself.").system(),
    doc("DECR", "string", "1.0.0", "O(1)", "key",
        "Takes one from an integer; an absent key counts as 0."),
    doc("DECRBY", "string", "1.0.0", "O(1)", "key decrement",
        "Takes a number from an integer; an absent key counts as 0."),
    doc("DEL", "generic", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Removes keys with their values."),
    doc("DELIFEQ", "string", "9.0.0", "O(1)", "key value",
        "Removes a key, but only while it holds the given string."),
    doc("DISCARD", "transactions", "2.0.0", "O(N) with N queued commands", "",
        "Forgets the queued commands and ends the transaction."),
    doc("DUMP", "generic", "2.6.0", "O(1) to find the key, O(N) to write its N elements", "key",
        "Gives a value as bytes that RESTORE takes, here or on another server."),
    doc("ECHO", "connection", "1.0.0", "O(1)", "message",
        "Sends the message back."),
    doc("EVAL", "scripting", "2.6.0", "Depends on the script", "script numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script."),
    doc("EVALSHA", "scripting", "2.6.0", "Depends on the script", "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script that the server knows, by its digest."),
    doc("EVALSHA_RO", "scripting", "7.0.0", "Depends on the script", "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script that only reads, by its digest."),
    doc("EVAL_RO", "scripting", "7.0.0", "Depends on the script", "script numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script that only reads."),
    doc("EXEC", "transactions", "1.2.0", "The sum of the queued commands", "",
        "Runs the queued commands as one, unless a watched key has changed."),
    doc("EXISTS", "generic", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Says how many of the keys are there, and counts a repeated one each time."),
    doc("EXPIRE", "generic", "1.0.0", "O(1)", "key seconds condition=[NX | XX | GT | LT]",
        "Lets a key vanish after a number of seconds."),
    doc("EXPIREAT", "generic", "1.2.0", "O(1)", "key unix-time-seconds condition=[NX | XX | GT | LT]",
        "Lets a key vanish at a point in time, given in seconds."),
    doc("EXPIRETIME", "generic", "7.0.0", "O(1)", "key",
        "Gives the point in time at which a key vanishes, in seconds."),
    doc("FAILOVER", "server", "6.2.0", "O(1)",
        "target=[TO host port:integer [FORCE]] [ABORT] [TIMEOUT milliseconds:integer]",
        "Makes a replica the primary, and this server its replica."),
    doc("FCALL", "scripting", "7.0.0", "Depends on the function", "function numkeys [key [key ...]] [arg [arg ...]]",
        "Calls a function."),
    doc("FCALL_RO", "scripting", "7.0.0", "Depends on the function", "function numkeys [key [key ...]] [arg [arg ...]]",
        "Calls a function that only reads."),
    doc("FLUSHALL", "server", "1.0.0", "O(N) with N keys in all databases", "flush-type=[ASYNC | SYNC]",
        "Empties every database."),
    doc("FLUSHDB", "server", "1.0.0", "O(N) with N keys in the database", "flush-type=[ASYNC | SYNC]",
        "Empties the selected database."),
    container("FUNCTION", "scripting", "7.0.0", "Commands about functions."),
    doc("FUNCTION|DELETE", "scripting", "7.0.0", "O(N) with N functions", "library-name",
        "Removes a library and its functions."),
    doc("FUNCTION|DUMP", "scripting", "7.0.0", "O(N) with N bytes of code", "",
        "Gives all libraries in a form that FUNCTION RESTORE takes."),
    doc("FUNCTION|FLUSH", "scripting", "7.0.0", "O(N) with N functions", "[ASYNC | SYNC]",
        "Removes all libraries."),
    help_doc("FUNCTION|HELP", "scripting", "7.0.0"),
    doc("FUNCTION|KILL", "scripting", "7.0.0", "O(1)", "",
        "Ends the function that is running, if it has not written."),
    doc("FUNCTION|LIST", "scripting", "7.0.0", "O(N) with N functions", "[LIBRARYNAME library-name-pattern] [WITHCODE]",
        "Describes the libraries."),
    doc("FUNCTION|LOAD", "scripting", "7.0.0", "O(1), and what the code itself does", "[REPLACE] function-code",
        "Adds a library."),
    doc("FUNCTION|RESTORE", "scripting", "7.0.0", "O(N) with N functions", "serialized-value [FLUSH | APPEND | REPLACE]",
        "Adds the libraries of a dump."),
    doc("FUNCTION|STATS", "scripting", "7.0.0", "O(1)", "",
        "Says which function is running, and how many there are."),
    doc("GEOADD", "geo", "3.2.0", "O(log N) for each member",
        "key condition=[NX | XX] [CH] longitude:double latitude:double member [longitude:double latitude:double member ...]",
        "Puts members of a sorted set on the map, by longitude and latitude."),
    doc("GEODIST", "geo", "3.2.0", "O(log N)", "key member1 member2 unit=[M | KM | FT | MI]",
        "Says how far two members are apart, in metres if not said otherwise."),
    doc("GEOHASH", "geo", "3.2.0", "O(log N) for each member", "key [member [member ...]]",
        "Gives the places of members in the notation of geohash.org."),
    doc("GEOPOS", "geo", "3.2.0", "O(log N) for each member", "key [member [member ...]]",
        "Gives the longitudes and latitudes of members."),
    doc("GEORADIUS", "geo", "3.2.0", "O(N + log M) with N members around the area, of M",
        "key longitude:double latitude:double radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC] [STORE key] [STOREDIST key]",
        "Finds the members around a place, or stores them under another key.")
        .deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS`"),
    doc("GEORADIUSBYMEMBER", "geo", "3.2.0", "O(N + log M) with N members around the area, of M",
        "key member radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC] [STORE key] [STOREDIST key]",
        "Finds the members around one of them, or stores them under another key.")
        .deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS` and `FROMMEMBER`"),
    doc("GEORADIUSBYMEMBER_RO", "geo", "3.2.10", "O(N + log M) with N members around the area, of M",
        "key member radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC]",
        "Finds the members around one of them.")
        .deprecated("6.2.0", "`GEOSEARCH` with `BYRADIUS` and `FROMMEMBER`"),
    doc("GEORADIUS_RO", "geo", "3.2.10", "O(N + log M) with N members around the area, of M",
        "key longitude:double latitude:double radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC]",
        "Finds the members around a place.")
        .deprecated("6.2.0", "`GEOSEARCH` with `BYRADIUS`"),
    doc("GEOSEARCH", "geo", "6.2.0", "O(N + log M) with N members around the area, of M",
        "key from=<FROMMEMBER member | FROMLONLAT longitude:double latitude:double> \
         by=<BYRADIUS radius:double unit=<M | KM | FT | MI> | \
         BYBOX width:double height:double unit=<M | KM | FT | MI> | \
         BYPOLYGON num-vertices:integer longitude:double latitude:double [longitude:double latitude:double ...]> \
         order=[ASC | DESC] count-block=[COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        "Finds the members inside a circle, a box or a polygon; a polygon has no `from`."),
    doc("GEOSEARCHSTORE", "geo", "6.2.0", "O(N + log M) with N members around the area, of M",
        "destination source from=<FROMMEMBER member | FROMLONLAT longitude:double latitude:double> \
         by=<BYRADIUS radius:double unit=<M | KM | FT | MI> | \
         BYBOX width:double height:double unit=<M | KM | FT | MI> | \
         BYPOLYGON num-vertices:integer longitude:double latitude:double [longitude:double latitude:double ...]> \
         order=[ASC | DESC] count-block=[COUNT count [ANY]] [STOREDIST]",
        "Stores the members inside a circle, a box or a polygon under another key."),
    doc("GET", "string", "1.0.0", "O(1)", "key",
        "Gives the string under a key."),
    doc("GETBIT", "bitmap", "2.2.0", "O(1)", "key offset",
        "Gives one bit of a string; past its end all bits are zero."),
    doc("GETDEL", "string", "6.2.0", "O(1)", "key",
        "Gives the string under a key and removes the key."),
    doc("GETEX", "string", "6.2.0", "O(1)",
        "key expiration=[EX seconds | PX milliseconds | EXAT unix-time-seconds | \
         PXAT unix-time-milliseconds | PERSIST]",
        "Gives the string under a key and changes when the key vanishes."),
    doc("GETRANGE", "string", "2.4.0", "O(N) with N bytes returned", "key start end",
        "Gives a part of a string; negative places count from its end."),
    doc("GETSET", "string", "1.0.0", "O(1)", "key value",
        "Stores a string and gives the one that was there before.")
        .deprecated("6.2.0", "`SET` with the `!GET` argument"),
    doc("HDEL", "hash", "2.0.0", "O(N) with N fields", "key field [field ...]",
        "Removes fields of a hash, and the hash with its last field."),
    doc("HELLO", "connection", "6.0.0", "O(1)",
        "arguments=[protover [AUTH username password] [SETNAME clientname]]",
        "Agrees on the protocol's version and introduces client and server to each other."),
    doc("HEXISTS", "hash", "2.0.0", "O(1)", "key field",
        "Says whether a hash has a field."),
    doc("HEXPIRE", "hash", "9.0.0", "O(N) with N fields",
        "key seconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Lets fields of a hash expire after a number of seconds."),
    doc("HEXPIREAT", "hash", "9.0.0", "O(N) with N fields",
        "key unix-time-seconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Lets fields of a hash expire at a second of Unix time."),
    doc("HEXPIRETIME", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Says at which second of Unix time fields of a hash expire."),
    doc("HGET", "hash", "2.0.0", "O(1)", "key field",
        "Gives the value of a field."),
    doc("HGETALL", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Gives all fields of a hash with their values."),
    doc("HGETDEL", "hash", "9.1.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Gives the values of fields and removes them."),
    doc("HGETEX", "hash", "9.0.0", "O(N) with N fields",
        "key expiration=[EX seconds | PX milliseconds | EXAT unix-time-seconds | \
         PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]",
        "Gives the values of fields and changes when they expire, if so asked."),
    doc("HINCRBY", "hash", "2.0.0", "O(1)", "key field increment",
        "Adds a number to an integer in a field; an absent field counts as 0."),
    doc("HINCRBYFLOAT", "hash", "2.6.0", "O(1)", "key field increment:double",
        "Adds a number with a fraction to a number in a field; an absent field counts as 0."),
    doc("HKEYS", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Names all fields of a hash."),
    doc("HLEN", "hash", "2.0.0", "O(1)", "key",
        "Says how many fields a hash has."),
    doc("HMGET", "hash", "2.0.0", "O(N) with N fields asked for", "key field [field ...]",
        "Gives the values of several fields."),
    doc("HMSET", "hash", "2.0.0", "O(N) with N fields", "key field value [field value ...]",
        "Sets several fields of a hash, as HSET does.")
        .deprecated("4.0.0", "`HSET` with multiple field-value pairs"),
    container("HOTKEYS", "server", "8.6.0", "Commands that find the keys that take most."),
    doc("HOTKEYS|GET", "server", "8.6.0", "O(K) with K keys returned", "",
        "Gives the hottest keys of the present session or the last one."),
    help_doc("HOTKEYS|HELP", "server", "8.6.0"),
    doc("HOTKEYS|RESET", "server", "8.6.0", "O(1)", "",
        "Forgets what was counted."),
    doc("HOTKEYS|START", "server", "8.6.0", "O(1)",
        "metrics=METRICS count:integer [CPU] [NET] [REQUESTS] [COUNT k:integer] [DURATION seconds:integer] [SAMPLE ratio:integer]",
        "Begins to count what keys take: of the processor's time, of the network, of requests."),
    doc("HOTKEYS|STOP", "server", "8.6.0", "O(1)", "",
        "Counts no more, and keeps what was counted."),
    doc("HPERSIST", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Lets fields of a hash stay for ever."),
    doc("HPEXPIRE", "hash", "9.0.0", "O(N) with N fields",
        "key milliseconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Lets fields of a hash expire after a number of milliseconds."),
    doc("HPEXPIREAT", "hash", "9.0.0", "O(N) with N fields",
        "key unix-time-milliseconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Lets fields of a hash expire at a millisecond of Unix time."),
    doc("HPEXPIRETIME", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Says at which millisecond of Unix time fields of a hash expire."),
    doc("HPTTL", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Says how many milliseconds fields of a hash have left."),
    doc("HRANDFIELD", "hash", "6.2.0", "O(N) with N fields returned", "key options=[count [WITHVALUES]]",
        "Gives fields chosen at random: different ones, or for a negative count any."),
    doc("HSCAN", "hash", "2.8.0", "O(1) for a call, O(N) for all N fields of the hash",
        "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
        "Gives some fields of a hash with their values, and where to go on."),
    doc("HSET", "hash", "2.0.0", "O(N) with N fields", "key field value [field value ...]",
        "Sets fields of a hash, which is created if it is absent."),
    doc("HSETEX", "hash", "9.0.0", "O(N) with N fields",
        "key key-condition=[NX | XX] fields-condition=[FNX | FXX] expiration=[EX seconds | PX milliseconds | \
         EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields field value \
         [field value ...]",
        "Sets fields of a hash, under a condition and for a time if so asked."),
    doc("HSETNX", "hash", "2.0.0", "O(1)", "key field value",
        "Sets a field of a hash, unless the field exists."),
    doc("HSTRLEN", "hash", "3.2.0", "O(1)", "key field",
        "Says how many bytes the value of a field has."),
    doc("HTTL", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Says how many seconds fields of a hash have left."),
    doc("HVALS", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Gives the values of all fields of a hash."),
    doc("INCR", "string", "1.0.0", "O(1)", "key",
        "Adds one to an integer; an absent key counts as 0."),
    doc("INCRBY", "string", "1.0.0", "O(1)", "key increment",
        "Adds a number to an integer; an absent key counts as 0."),
    doc("INCRBYFLOAT", "string", "2.6.0", "O(1)", "key increment:double",
        "Adds a number with a fraction to a number; an absent key counts as 0."),
    doc("INFO", "server", "1.0.0", "O(1)", "[section [section ...]]",
        "Gives facts and counters about the server, by section."),
    doc("KEYS", "generic", "1.0.0", "O(N) with N keys in the database", "pattern",
        "Lists all keys that match a pattern, at once; SCAN does it in steps."),
    doc("LASTSAVE", "server", "1.0.0", "O(1)", "",
        "Says when the data was last saved to disk with success, in Unix time."),
    container("LATENCY", "server", "2.8.13", "Commands about delays that the server has seen."),
    doc("LATENCY|DOCTOR", "server", "2.8.13", "O(1)", "",
        "Explains the delays on record and what may help against them."),
    doc("LATENCY|GRAPH", "server", "2.8.13", "O(1)", "event",
        "Draws the delays of an event over time with plain characters."),
    help_doc("LATENCY|HELP", "server", "2.8.13"),
    doc("LATENCY|HISTOGRAM", "server", "7.0.0", "O(N) with N commands shown", "[command [command ...]]",
        "Gives, by command, how many calls took up to how many microseconds."),
    doc("LATENCY|HISTORY", "server", "2.8.13", "O(1)", "event",
        "Gives the delays of an event, each with its time."),
    doc("LATENCY|LATEST", "server", "2.8.13", "O(1)", "",
        "Gives the newest and the longest delay of every event."),
    doc("LATENCY|RESET", "server", "2.8.13", "O(1)", "[event [event ...]]",
        "Forgets the delays of the named events, or of all."),
    doc("LCS", "string", "7.0.0", "O(N*M) with strings of N and M bytes",
        "key1 key2#0 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
        "Finds the longest sequence of bytes that two strings share in the same order."),
    doc("LINDEX", "list", "1.0.0", "O(log N) with N elements", "key index",
        "Gives the element at a position, which counts from the end if negative."),
    doc("LINSERT", "list", "2.2.0", "O(N) with N elements up to the pivot", "key where=<BEFORE | AFTER> pivot element",
        "Inserts an element next to the first one that equals the pivot."),
    doc("LLEN", "list", "1.0.0", "O(1)", "key",
        "Says how many elements a list has."),
    doc("LMOVE", "list", "6.2.0", "O(1)", "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT>",
        "Moves an element from an end of one list to an end of another."),
    doc("LMPOP", "list", "7.0.0", "O(N+M) with N keys and M elements taken",
        "numkeys key [key ...] where=<LEFT | RIGHT> [COUNT count]",
        "Takes elements from the first list that has some."),
    doc("LOLWUT", "server", "5.0.0", "O(1)", "[VERSION version:integer]",
        "Draws a picture, on a sea as rough as the latencies of commands are uneven."),
    doc("LPOP", "list", "1.0.0", "O(N) with N elements taken", "key [count]",
        "Takes the first elements of a list."),
    doc("LPOS", "list", "6.0.6", "O(N) with N elements looked at",
        "key element [RANK rank:integer] [COUNT num-matches:integer] [MAXLEN len:integer]",
        "Gives the positions of elements that equal one."),
    doc("LPUSH", "list", "1.0.0", "O(N) with N elements pushed", "key element [element ...]",
        "Puts elements at the front of a list, which is created if it is absent."),
    doc("LPUSHX", "list", "2.2.0", "O(N) with N elements pushed", "key element [element ...]",
        "Puts elements at the front of a list that exists."),
    doc("LRANGE", "list", "1.0.0", "O(log N+M) with N elements, M of them returned", "key start stop:integer",
        "Gives the elements at a range of positions."),
    doc("LREM", "list", "1.0.0", "O(N) with N elements", "key count element",
        "Removes elements that equal one, from the front or, if the count is negative, from the end."),
    doc("LSET", "list", "1.0.0", "O(log N) with N elements", "key index element",
        "Replaces the element at a position."),
    doc("LTRIM", "list", "1.0.0", "O(log N) with N elements", "key start stop:integer",
        "Removes all elements but those at a range of positions."),
    container("MEMORY", "server", "4.0.0", "Commands about the memory that the server uses."),
    doc("MEMORY|DOCTOR", "server", "4.0.0", "O(1)", "",
        "Says whether anything is odd about the use of memory."),
    help_doc("MEMORY|HELP", "server", "4.0.0"),
    doc("MEMORY|MALLOC-STATS", "server", "4.0.0", "O(N) with N arenas of the allocator", "",
        "Gives the allocator's own report."),
    doc("MEMORY|PURGE", "server", "4.0.0", "O(N) with N free pages", "",
        "Gives unused pages back to the operating system."),
    doc("MEMORY|STATS", "server", "4.0.0", "O(1)", "",
        "Says what the memory is used for, by purpose."),
    doc("MEMORY|USAGE", "server", "4.0.0", "O(N) with N samples", "key [SAMPLES count]",
        "Says how many bytes a key and its value take; a large value is estimated from samples."),
    doc("MGET", "string", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Gives the strings under several keys as of one moment."),
    doc("MIGRATE", "generic", "2.6.0", "O(N) with N elements to send",
        "host port key-selector=[key | empty-string=\"\"] destination-db timeout [COPY] [REPLACE] \
         authentication=[AUTH auth=password | AUTH2 auth2=username password] [KEYS keys=key [keys=key ...]]",
        "Moves keys to another server."),
    container("MODULE", "server", "4.0.0", "Commands about modules, of which there are none."),
    help_doc("MODULE|HELP", "server", "5.0.0"),
    doc("MODULE|LIST", "server", "4.0.0", "O(1)", "",
        "Lists the modules, of which there are none."),
    doc("MODULE|LOAD", "server", "4.0.0", "O(1)", "path [arg [arg ...]]",
        "Would load a module."),
    doc("MODULE|LOADEX", "server", "7.0.0", "O(1)",
        "path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]",
        "Would load a module with its settings."),
    doc("MODULE|UNLOAD", "server", "4.0.0", "O(1)", "name",
        "Would unload a module."),
    doc("MONITOR", "server", "1.0.0", "O(1), then for each command that is run", "",
        "Shows every command that the server runs, as it runs it."),
    doc("MOVE", "generic", "1.0.0", "O(1)", "key db",
        "Takes a key into another database, unless it is there already."),
    doc("MSET", "string", "1.0.1", "O(N) with N keys", "key value [key value ...]",
        "Stores several strings as one."),
    doc("MSETEX", "string", "9.1.0", "O(N) with N keys",
        "numkeys key value [key value ...] condition=[NX | XX] expiration=[EX seconds | PX milliseconds | \
         EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Stores several strings as one, under a condition and for a time if so asked."),
    doc("MSETNX", "string", "1.0.1", "O(N) with N keys", "key value [key value ...]",
        "Stores several strings, or none if one of the keys exists."),
    doc("MULTI", "transactions", "1.2.0", "O(1)", "",
        "Begins a transaction: commands are queued until EXEC runs them."),
    container("OBJECT", "generic", "2.2.3", "Commands that look at how a value is kept."),
    doc("OBJECT|ENCODING", "generic", "2.2.3", "O(1)", "key",
        "Names the form in which a value is kept in memory."),
    doc("OBJECT|FREQ", "generic", "4.0.0", "O(1)", "key",
        "Says how often a key is used, on a logarithmic scale."),
    help_doc("OBJECT|HELP", "generic", "6.2.0"),
    doc("OBJECT|IDLETIME", "generic", "2.2.3", "O(1)", "key",
        "Says for how many seconds a key has not been used."),
    doc("OBJECT|REFCOUNT", "generic", "2.2.3", "O(1)", "key",
        "Says how many owners share a value."),
    doc("PERSIST", "generic", "2.2.0", "O(1)", "key",
        "Lets a key stay that was to vanish."),
    doc("PEXPIRE", "generic", "2.6.0", "O(1)", "key milliseconds condition=[NX | XX | GT | LT]",
        "Lets a key vanish after a number of milliseconds."),
    doc("PEXPIREAT", "generic", "2.6.0", "O(1)", "key unix-time-milliseconds condition=[NX | XX | GT | LT]",
        "Lets a key vanish at a point in time, given in milliseconds."),
    doc("PEXPIRETIME", "generic", "7.0.0", "O(1)", "key",
        "Gives the point in time at which a key vanishes, in milliseconds."),
    doc("PFADD", "hyperloglog", "2.8.9", "O(1) for each element", "key [element [element ...]]",
        "Counts elements in; the key then knows about how many different ones it has seen."),
    doc("PFCOUNT", "hyperloglog", "2.8.9", "O(1) for one key, O(N) with N keys", "key [key ...]",
        "Says about how many different elements a key, or several together, have seen."),
    doc("PFDEBUG", "hyperloglog", "2.8.9", "N/A", "subcommand key",
        "Shows how a HyperLogLog is encoded, or its registers, or makes it dense.")
        .system(),
    doc("PFMERGE", "hyperloglog", "2.8.9", "O(N) with N keys", "destkey [sourcekey [sourcekey ...]]",
        "Stores a HyperLogLog that has seen what any of several has seen."),
    doc("PFSELFTEST", "hyperloglog", "2.8.9", "N/A", "",
        "Tests the counting of elements with elements of its own.")
        .system(),
    doc("PING", "connection", "1.0.0", "O(1)", "[message]",
        "Answers PONG, or with the message."),
    doc("PSETEX", "string", "2.6.0", "O(1)", "key milliseconds value",
        "Stores a string that vanishes after a number of milliseconds."),
    doc("PSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N patterns", "pattern [pattern ...]",
        "Listens to all channels whose names fit a pattern."),
    doc("PSYNC", "server", "2.8.0", "O(N) with N bytes of the stream, or N keys if it has to begin anew", "replicationid offset:integer",
        "Makes the connection a replica's, and goes on where that left off."),
    doc("PTTL", "generic", "2.6.0", "O(1)", "key",
        "Says in how many milliseconds a key vanishes."),
    doc("PUBLISH", "pubsub", "2.0.0", "O(N+M) with N subscribers of the channel and M patterns", "channel message",
        "Sends a message to all who listen to a channel, and says how many do."),
    container("PUBSUB", "pubsub", "2.8.0", "Commands about channels and who listens to them."),
    doc("PUBSUB|CHANNELS", "pubsub", "2.8.0", "O(N) with N channels", "[pattern]",
        "Names the channels that somebody listens to."),
    help_doc("PUBSUB|HELP", "pubsub", "6.2.0"),
    doc("PUBSUB|NUMPAT", "pubsub", "2.8.0", "O(1)", "",
        "Says how many different patterns are listened to."),
    doc("PUBSUB|NUMSUB", "pubsub", "2.8.0", "O(N) with N channels asked for", "[channel [channel ...]]",
        "Says how many listen to each of the channels."),
    doc("PUBSUB|SHARDCHANNELS", "pubsub", "7.0.0", "O(N) with N shard channels", "[pattern]",
        "Names the shard channels that somebody listens to."),
    doc("PUBSUB|SHARDNUMSUB", "pubsub", "7.0.0", "O(N) with N shard channels asked for",
        "[shardchannel [shardchannel ...]]",
        "Says how many listen to each of the shard channels."),
    doc("PUNSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N patterns", "[pattern [pattern ...]]",
        "Listens no more to the channels that fit a pattern."),
    doc("QUIT", "connection", "1.0.0", "O(1)", "",
        "Ends the connection once the replies are sent."),
    doc("RANDOMKEY", "generic", "1.0.0", "O(1)", "",
        "Gives a key of the selected database, chosen by chance."),
    doc("READONLY", "cluster", "3.0.0", "O(1)", "",
        "Lets a replica of a cluster serve reads on this connection."),
    doc("READWRITE", "cluster", "3.0.0", "O(1)", "",
        "Ends what READONLY has begun."),
    doc("RENAME", "generic", "1.0.0", "O(1)", "key newkey",
        "Moves a value to another key, in place of what was there."),
    doc("RENAMENX", "generic", "1.0.0", "O(1)", "key newkey",
        "Moves a value to another key, unless that one exists."),
    doc("REPLCONF", "server", "3.0.0", "O(1)", "",
        "Says something about a replica, or asks it something.")
        .system(),
    doc("REPLICAOF", "server", "5.0.0", "O(1)", "args=<host port:integer | NO ONE>",
        "Follows another server as its replica, or stops doing so."),
    doc("RESET", "connection", "6.2.0", "O(1)", "",
        "Puts the connection into the state of a new one."),
    doc("RESTORE", "generic", "2.6.0", "O(1) to add the key, O(N) or more to build its N elements",
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Makes a key of what DUMP has given."),
    doc("RESTORE-ASKING", "server", "3.0.0", "O(1) to add the key, O(N) or more to build its N elements",
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Makes a key of what DUMP has given, on a node that takes a slot over.")
        .system(),
    doc("ROLE", "server", "2.8.12", "O(1)", "",
        "Says whether the server is a primary or a replica, and of whom."),
    doc("RPOP", "list", "1.0.0", "O(N) with N elements taken", "key [count]",
        "Takes the last elements of a list."),
    doc("RPOPLPUSH", "list", "1.2.0", "O(1)", "source destination",
        "Moves the last element of one list to the front of another.")
        .deprecated("6.2.0", "`LMOVE` with the `RIGHT` and `LEFT` arguments"),
    doc("RPUSH", "list", "1.0.0", "O(N) with N elements pushed", "key element [element ...]",
        "Puts elements at the end of a list, which is created if it is absent."),
    doc("RPUSHX", "list", "2.2.0", "O(N) with N elements pushed", "key element [element ...]",
        "Puts elements at the end of a list that exists."),
    doc("SADD", "set", "1.0.0", "O(N) with N members", "key member [member ...]",
        "Adds members to a set, which is created if it is absent."),
    doc("SAVE", "server", "1.0.0", "O(N) with N keys", "",
        "Takes a snapshot and replies when it is on disk."),
    doc("SCAN", "generic", "2.8.0", "O(1) for a call, O(N) for all N keys",
        "cursor [MATCH pattern] [COUNT count] [TYPE type]",
        "Goes through the keys of the selected database in steps."),
    doc("SCARD", "set", "1.0.0", "O(1)", "key",
        "Says how many members a set has."),
    container("SCRIPT", "scripting", "2.6.0", "Commands about scripts."),
    doc("SCRIPT|DEBUG", "scripting", "3.2.0", "O(1)", "<YES | SYNC | NO>",
        "Is there for clients that ask for no debugging: there is none."),
    doc("SCRIPT|EXISTS", "scripting", "2.6.0", "O(N) with N scripts asked for", "sha1 [sha1 ...]",
        "Says which scripts the server knows."),
    doc("SCRIPT|FLUSH", "scripting", "2.6.0", "O(N) with N scripts", "[ASYNC | SYNC]",
        "Makes the server forget all scripts."),
    help_doc("SCRIPT|HELP", "scripting", "5.0.0"),
    doc("SCRIPT|KILL", "scripting", "2.6.0", "O(1)", "",
        "Ends the script that is running, if it has not written."),
    doc("SCRIPT|LOAD", "scripting", "2.6.0", "O(N) with N bytes of the script", "script",
        "Makes a script known to the server."),
    doc("SCRIPT|SHOW", "scripting", "8.0.0", "O(1)", "sha1",
        "Gives the text of a script."),
    doc("SDIFF", "set", "1.0.0", "O(N) with N members of all sets", "key [key ...]",
        "Gives the members of the first set that none of the others has."),
    doc("SDIFFSTORE", "set", "1.0.0", "O(N) with N members of all sets", "destination key [key ...]",
        "Stores the members of the first set that none of the others has."),
    doc("SELECT", "connection", "1.0.0", "O(1)", "index",
        "Chooses the database that this connection works on."),
    doc("SET", "string", "1.0.0", "O(1)",
        "key value condition=[NX | XX | IFEQ comparison-value] [GET] expiration=[EX seconds | \
         PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Stores a string, in place of whatever the key held."),
    doc("SETBIT", "bitmap", "2.2.0", "O(1)", "key offset value:integer",
        "Sets one bit of a string, which grows as needed, and gives the bit that was there."),
    doc("SETEX", "string", "2.0.0", "O(1)", "key seconds value",
        "Stores a string that vanishes after a number of seconds."),
    doc("SETNX", "string", "1.0.0", "O(1)", "key value",
        "Stores a string, unless the key exists."),
    doc("SETRANGE", "string", "2.2.0", "O(N) with N bytes written", "key offset value",
        "Writes over a part of a string, which grows as needed."),
    doc("SHUTDOWN", "server", "1.0.0", "O(N) with N keys when saving, else O(1)",
        "how=[save=[NOSAVE | SAVE] [NOW] [FORCE] | ABORT]",
        "Saves the data if so configured or asked, and ends the server."),
    doc("SINTER", "set", "1.0.0", "O(N*M) at most, with N members of the smallest of M sets", "key [key ...]",
        "Gives the members that all of the sets have."),
    doc("SINTERCARD", "set", "7.0.0", "O(N*M) at most, with N members of the smallest of M sets",
        "numkeys key [key ...] [LIMIT limit]",
        "Says how many members all of the sets have, and counts no further than a limit."),
    doc("SINTERSTORE", "set", "1.0.0", "O(N*M) at most, with N members of the smallest of M sets",
        "destination key [key ...]",
        "Stores the members that all of the sets have."),
    doc("SISMEMBER", "set", "1.0.0", "O(1)", "key member",
        "Says whether a set has a member."),
    doc("SLAVEOF", "server", "1.0.0", "O(1)", "args=<host port:integer | NO ONE>",
        "Follows another server as its replica, or stops doing so.")
        .deprecated("5.0.0", "`REPLICAOF`"),
    container("SLOWLOG", "server", "2.2.12", "Commands about the log of slow commands."),
    doc("SLOWLOG|GET", "server", "2.2.12", "O(N) with N entries returned", "[count]",
        "Gives the newest entries, 10 if not said otherwise; with STAGES, also where the time went."),
    help_doc("SLOWLOG|HELP", "server", "6.2.0"),
    doc("SLOWLOG|LEN", "server", "2.2.12", "O(1)", "",
        "Says how many entries the slow log has."),
    doc("SLOWLOG|RESET", "server", "2.2.12", "O(N) with N entries", "",
        "Empties the slow log."),
    doc("SMEMBERS", "set", "1.0.0", "O(N) with N members of the set", "key",
        "Gives all members of a set."),
    doc("SMISMEMBER", "set", "6.2.0", "O(N) with N members asked for", "key member [member ...]",
        "Says of each of several members whether a set has it."),
    doc("SMOVE", "set", "1.0.0", "O(1)", "source destination member",
        "Moves a member from one set to another."),
    doc("SORT", "generic", "1.0.0", "O(N+M*log(M)) with N elements, M of them returned",
        "key [BY pattern] offset_count=[LIMIT offset count] [GET pattern [GET pattern ...]] order=[ASC | DESC] \
         sorting=[ALPHA] [STORE destination#2]",
        "Sorts a list, a set or a sorted set, by itself or by other keys, and replies or stores the outcome."),
    doc("SORT_RO", "generic", "7.0.0", "O(N+M*log(M)) with N elements, M of them returned",
        "key [BY pattern] offset_count=[LIMIT offset count] [GET pattern [GET pattern ...]] order=[ASC | DESC] \
         sorting=[ALPHA]",
        "Sorts a list, a set or a sorted set, by itself or by other keys, and replies the outcome."),
    doc("SPOP", "set", "1.0.0", "O(1), O(N) with N members to be removed", "key [count]",
        "Removes members chosen at random and gives them."),
    doc("SPUBLISH", "pubsub", "7.0.0", "O(N) with N subscribers of the shard channel", "shardchannel message",
        "Sends a message to all who listen to a shard channel, and says how many do."),
    doc("SRANDMEMBER", "set", "1.0.0", "O(1), O(N) with N members returned", "key [count]",
        "Gives members chosen at random: different ones, or for a negative count any."),
    doc("SREM", "set", "1.0.0", "O(N) with N members to be removed", "key member [member ...]",
        "Removes members of a set, and the set with its last member."),
    doc("SSCAN", "set", "2.8.0", "O(1) for a call, O(N) for all N members of the set",
        "key cursor [MATCH pattern] [COUNT count]",
        "Gives some members of a set, and where to go on."),
    doc("SSUBSCRIBE", "pubsub", "7.0.0", "O(N) with N shard channels", "shardchannel [shardchannel ...]",
        "Listens to shard channels, which in a cluster belong to slots as keys do."),
    doc("STRLEN", "string", "2.2.0", "O(1)", "key",
        "Says how many bytes a string has."),
    doc("SUBSCRIBE", "pubsub", "2.0.0", "O(N) with N channels", "channel [channel ...]",
        "Listens to channels."),
    doc("SUBSTR", "string", "1.0.0", "O(N) with N bytes returned", "key start end",
        "Gives a part of a string, as GETRANGE does.")
        .deprecated("2.0.0", "`GETRANGE`"),
    doc("SUNION", "set", "1.0.0", "O(N) with N members of all sets", "key [key ...]",
        "Gives the members of all of the sets."),
    doc("SUNIONSTORE", "set", "1.0.0", "O(N) with N members of all sets", "destination key [key ...]",
        "Stores the members of all of the sets."),
    doc("SUNSUBSCRIBE", "pubsub", "7.0.0", "O(N) with N shard channels", "[shardchannel [shardchannel ...]]",
        "Listens no more to shard channels."),
    doc("SWAPDB", "server", "4.0.0", "O(N) with N clients that watch or wait for keys of either",
        "index1 index2",
        "Lets two databases trade places, for all clients at once."),
    doc("SYNC", "server", "1.0.0", "O(N) with N keys", "",
        "Makes the connection a replica's, and sends it everything."),
    doc("TIME", "server", "2.6.0", "O(1)", "",
        "Gives the server's clock: seconds of Unix time and microseconds."),
    doc("TOUCH", "generic", "3.2.1", "O(N) with N keys", "key [key ...]",
        "Marks keys as used now and says how many there are."),
    doc("TTL", "generic", "1.0.0", "O(1)", "key",
        "Says in how many seconds a key vanishes."),
    doc("TYPE", "generic", "1.0.0", "O(1)", "key",
        "Names the type of the value under a key."),
    doc("UNLINK", "generic", "4.0.0", "O(1) for each key, then O(N) with N elements in the background",
        "key [key ...]",
        "Removes keys at once and frees their values in the background."),
    doc("UNSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N channels", "[channel [channel ...]]",
        "Listens no more to channels."),
    doc("UNWATCH", "transactions", "2.2.0", "O(1)", "",
        "Stops watching all keys."),
    doc("WAIT", "generic", "3.0.0", "O(1)", "numreplicas:integer timeout:integer",
        "Waits until replicas have what the client has written."),
    doc("WAITAOF", "generic", "7.2.0", "O(1)", "numlocal:integer numreplicas:integer timeout:integer",
        "Waits until what the client has written is on disk for good, here or at replicas."),
    doc("WATCH", "transactions", "2.2.0", "O(1) for each key", "key [key ...]",
        "Lets the next EXEC do nothing if one of the keys changes before it."),
    doc("XACK", "stream", "5.0.0", "O(log N) for each entry, with N pending", "key group id [id ...]",
        "Takes entries off a group's list of pending ones, since they are done with."),
    doc("XACKDEL", "stream", "8.2.0", "O(log N) for each entry",
        "key group condition=[KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "Acknowledges entries and deletes them, as far as other groups allow that."),
    doc("XADD", "stream", "5.0.0", "O(log N), and what trimming frees is freed elsewhere",
        "key [NOMKSTREAM] condition=[KEEPREF | DELREF | ACKED] \
         trim=[strategy=<MAXLEN | MINID> operator=[= | ~] threshold [LIMIT count]] id-selector=<* | id> \
         field value [field value ...]",
        "Appends an entry to a stream, which is made where there is none."),
    doc("XAUTOCLAIM", "stream", "6.2.0", "O(M log N) with M entries looked at",
        "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        "Gives a consumer entries that others have had pending for too long, in steps."),
    doc("XCLAIM", "stream", "5.0.0", "O(log N) for each entry",
        "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] \
         [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
        "Gives a consumer certain entries that others have pending."),
    doc("XDEL", "stream", "5.0.0", "O(log N) for each entry", "key id [id ...]",
        "Deletes entries by their ids and says how many were there."),
    doc("XDELEX", "stream", "8.2.0", "O(log N) for each entry",
        "key condition=[KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "Deletes entries, with a say in what becomes of groups that have them pending."),
    container("XGROUP", "stream", "5.0.0", "Commands about the groups that read a stream."),
    doc("XGROUP|CREATE", "stream", "5.0.0", "O(log N) with N groups",
        "key group id-selector=<id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
        "Makes a group that reads from an id on."),
    doc("XGROUP|CREATECONSUMER", "stream", "6.2.0", "O(log N) with N consumers", "key group consumer",
        "Makes a consumer before it reads, and says whether it is new."),
    doc("XGROUP|DELCONSUMER", "stream", "5.0.0", "O(N log N) with N entries that it has pending",
        "key group consumer",
        "Removes a consumer and says how many entries it had pending."),
    doc("XGROUP|DESTROY", "stream", "5.0.0", "O(log N) with N groups, and the rest is freed elsewhere", "key group",
        "Removes a group and all that it remembers."),
    help_doc("XGROUP|HELP", "stream", "5.0.0"),
    doc("XGROUP|SETID", "stream", "5.0.0", "O(log N) with N groups",
        "key group id-selector=<id | $> [ENTRIESREAD entries-read]",
        "Lets a group go on from another id."),
    container("XINFO", "stream", "5.0.0", "Commands that look at streams."),
    doc("XINFO|CONSUMERS", "stream", "5.0.0", "O(N) with N consumers", "key group",
        "Lists the consumers of a group."),
    doc("XINFO|GROUPS", "stream", "5.0.0", "O(N) with N groups", "key",
        "Lists the groups of a stream."),
    help_doc("XINFO|HELP", "stream", "5.0.0"),
    doc("XINFO|STREAM", "stream", "5.0.0", "O(log N), and what FULL lists", "key full-block=[FULL [COUNT count]]",
        "Describes a stream, with all that belongs to it if so asked."),
    doc("XLEN", "stream", "5.0.0", "O(1)", "key",
        "Says how many entries a stream has."),
    doc("XPENDING", "stream", "5.0.0", "O(log N + M) with M entries looked at",
        "key group filters=[[IDLE min-idle-time] start end count [consumer]]",
        "Says what a group was given and has not acknowledged: a summary, or a range of entries."),
    doc("XRANGE", "stream", "5.0.0", "O(log N + M) with M entries returned", "key start end [COUNT count]",
        "Gives the entries between two ids."),
    doc("XREAD", "stream", "5.0.0", "O(log N + M) for each stream, with M entries returned",
        "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
        "Gives the entries after certain ids, and waits for some if so asked."),
    doc("XREADGROUP", "stream", "5.0.0", "O(log N + M log P) for each stream, with M entries returned and P pending",
        "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] \
         STREAMS key [key ...] id [id ...]",
        "Gives entries to a consumer of a group, new ones or those that it has not acknowledged."),
    doc("XREVRANGE", "stream", "5.0.0", "O(log N + M) with M entries returned", "key end start [COUNT count]",
        "Gives the entries between two ids, the last one first."),
    doc("XSETID", "stream", "5.0.0", "O(1)",
        "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
        "Sets what a stream remembers of entries that are gone: for loading data."),
    doc("XTRIM", "stream", "5.0.0", "O(log N), and what it frees is freed elsewhere",
        "key strategy=<MAXLEN | MINID> operator=[= | ~] threshold [LIMIT count] \
         condition=[KEEPREF | DELREF | ACKED]",
        "Deletes entries at the start of a stream."),
    doc("ZADD", "sorted-set", "1.2.0", "O(log N) for each member, with N members of the set",
        "key condition=[NX | XX] comparison=[GT | LT] [CH] [INCR] score:double member [score:double member ...]",
        "Adds members with scores, or changes the scores of members that are there."),
    doc("ZCARD", "sorted-set", "1.2.0", "O(1)", "key",
        "Says how many members a sorted set has."),
    doc("ZCOUNT", "sorted-set", "2.0.0", "O(log N) with N members", "key min:double max:double",
        "Counts the members with scores in a range."),
    doc("ZDIFF", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the first of K sets",
        "numkeys key [key ...] [WITHSCORES]",
        "Gives the members that only the first of several sorted sets has."),
    doc("ZDIFFSTORE", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the first of K sets",
        "destination numkeys key [key ...]",
        "Stores the members that only the first of several sorted sets has."),
    doc("ZINCRBY", "sorted-set", "1.2.0", "O(log N) with N members", "key increment member",
        "Adds a number to the score of a member; an absent member counts as 0."),
    doc("ZINTER", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the smallest of K sets",
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE aggregate=<SUM | MIN | \
         MAX>] [WITHSCORES]",
        "Gives the members that all of several sorted sets have."),
    doc("ZINTERCARD", "sorted-set", "7.0.0", "O(L * K * log N) with L members of the smallest of K sets",
        "numkeys key [key ...] [LIMIT limit:integer]",
        "Counts the members that all of several sorted sets have."),
    doc("ZINTERSTORE", "sorted-set", "2.0.0", "O(L * K * log N) with L members of the smallest of K sets",
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE \
         aggregate=<SUM | MIN | MAX>]",
        "Stores the members that all of several sorted sets have."),
    doc("ZLEXCOUNT", "sorted-set", "2.8.9", "O(log N) with N members", "key min max",
        "Counts the members within a range of names, where all have the same score."),
    doc("ZMPOP", "sorted-set", "7.0.0", "O(K + M log N) with K keys and M members taken",
        "numkeys key [key ...] where=<MIN | MAX> [COUNT count]",
        "Takes members off an end of the first sorted set that has any."),
    doc("ZMSCORE", "sorted-set", "6.2.0", "O(log N) for each member asked for", "key member [member ...]",
        "Gives the scores of several members."),
    doc("ZPOPMAX", "sorted-set", "5.0.0", "O(M log N) with M of N members taken",
        "key [count]",
        "Takes the members with the highest scores off a sorted set."),
    doc("ZPOPMIN", "sorted-set", "5.0.0", "O(M log N) with M of N members taken",
        "key [count]",
        "Takes the members with the lowest scores off a sorted set."),
    doc("ZRANDMEMBER", "sorted-set", "6.2.0", "O(N) with N members returned",
        "key options=[count [WITHSCORES]]",
        "Gives members chosen at random: different ones, or for a negative count any."),
    doc("ZRANGE", "sorted-set", "1.2.0", "O(log N + M) with N members, M of which are returned",
        "key start:string stop sortby=[BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
        "Gives the members in a range of positions, scores or names."),
    doc("ZRANGEBYLEX", "sorted-set", "2.8.9", "O(log N + M) with N members, M of which are returned",
        "key min max [LIMIT offset count]",
        "Gives the members within a range of names, where all have the same score.")
        .deprecated("6.2.0", "`ZRANGE` with the `BYLEX` argument"),
    doc("ZRANGEBYSCORE", "sorted-set", "1.0.5", "O(log N + M) with N members, M of which are returned",
        "key min:double max:double [WITHSCORES] [LIMIT offset count]",
        "Gives the members with scores in a range.")
        .deprecated("6.2.0", "`ZRANGE` with the `BYSCORE` argument"),
    doc("ZRANGESTORE", "sorted-set", "6.2.0", "O(log N + M) with N members, M of which are stored",
        "dst src min max sortby=[BYSCORE | BYLEX] [REV] [LIMIT offset count]",
        "Stores the members in a range of positions, scores or names under another key."),
    doc("ZRANK", "sorted-set", "2.0.0", "O(log N) with N members", "key member [WITHSCORE]",
        "Says how many members come before one in ascending order."),
    doc("ZREM", "sorted-set", "1.2.0", "O(log N) for each member, with N members of the set",
        "key member [member ...]",
        "Removes members of a sorted set, and the set with its last member."),
    doc("ZREMRANGEBYLEX", "sorted-set", "2.8.9", "O(log N) for each member removed, with N members", "key min max",
        "Removes the members within a range of names, where all have the same score."),
    doc("ZREMRANGEBYRANK", "sorted-set", "2.0.0", "O(log N) for each member removed, with N members",
        "key start stop:integer",
        "Removes the members in a range of positions."),
    doc("ZREMRANGEBYSCORE", "sorted-set", "1.2.0", "O(log N) for each member removed, with N members",
        "key min:double max:double",
        "Removes the members with scores in a range."),
    doc("ZREVRANGE", "sorted-set", "1.2.0", "O(log N + M) with N members, M of which are returned",
        "key start stop:integer [WITHSCORES]",
        "Gives the members in a range of positions, counted from the last one.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` argument"),
    doc("ZREVRANGEBYLEX", "sorted-set", "2.8.9", "O(log N + M) with N members, M of which are returned",
        "key max min [LIMIT offset count]",
        "Gives the members within a range of names in descending order.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYLEX` arguments"),
    doc("ZREVRANGEBYSCORE", "sorted-set", "2.2.0", "O(log N + M) with N members, M of which are returned",
        "key max:double min:double [WITHSCORES] [LIMIT offset count]",
        "Gives the members with scores in a range in descending order.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYSCORE` arguments"),
    doc("ZREVRANK", "sorted-set", "2.0.0", "O(log N) with N members", "key member [WITHSCORE]",
        "Says how many members come before one in descending order."),
    doc("ZSCAN", "sorted-set", "2.8.0", "O(1) for a call, O(N) for all N members of the set",
        "key cursor [MATCH pattern] [COUNT count] [NOSCORES]",
        "Gives some members of a sorted set with their scores, and where to go on."),
    doc("ZSCORE", "sorted-set", "1.2.0", "O(log N) with N members", "key member",
        "Gives the score of a member."),
    doc("ZUNION", "sorted-set", "6.2.0", "O(N log N) with N members of all sets",
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE aggregate=<SUM | MIN | \
         MAX>] [WITHSCORES]",
        "Gives the members of several sorted sets, each once."),
    doc("ZUNIONSTORE", "sorted-set", "2.0.0", "O(N log N) with N members of all sets",
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE \
         aggregate=<SUM | MIN | MAX>]",
        "Stores the members of several sorted sets, each once."),
];

/// DEBUG is one command to COMMAND, as in Redis: its subcommands are no rows above but stand in HELP alone.
#[rustfmt::skip]
const DEBUG_TOPICS: &[(&str, &str)] = &[
    ("ACCOUNTING <0 | 1>", "Stops or starts to account for time; for measuring what that costs."),
    ("CONFIG-REWRITE-FORCE-ALL", "Writes every setting to the configuration file, defaults too."),
    ("DIGEST", "Gives a digest of all data, which equals that of another server with the same data."),
    ("DIGEST-VALUE [key [key ...]]", "Gives a digest of each value."),
    ("ERROR message", "Answers with an error of that text."),
    ("HTSTATS db", "Describes the tables of a database."),
    ("LOADAOF", "Empties the databases and loads the append-only files again."),
    ("LOG message", "Writes a line into the server's log."),
    ("OBJECT key", "Describes how a value is kept."),
    ("PANIC", "Breaks off in the middle, as a fault in a command would."),
    ("POPULATE count [prefix] [size]", "Makes keys with values, up to a count."),
    ("PROTOCOL type", "Answers with an example of a type of the protocol."),
    ("QUICKLIST-PACKED-THRESHOLD size", "Sets from which length on elements of lists are serialized on their own."),
    ("SET-ACTIVE-EXPIRE <0 | 1>", "Stops or starts the removal of expired keys that nobody asks for."),
    ("SLEEP seconds", "Keeps the server from answering for a time."),
];

/// One argument of a command, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// How it is shown to people; groups have none.
    pub(crate) display_text: Option<String>,
    /// The word that announces it, or that it consists of.
    pub(crate) token: Option<String>,
    /// Which key specification of the command finds it.
    pub(crate) key_spec_index: Option<usize>,
    pub(crate) optional: bool,
    pub(crate) multiple: bool,
    /// The token comes again with each repetition.
    pub(crate) multiple_token: bool,
    /// Of a block the members, of a choice the alternatives.
    pub(crate) arguments: Vec<Argument>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Key,
    String,
    Integer,
    Double,
    Pattern,
    UnixTime,
    PureToken,
    OneOf,
    Block,
}

impl Kind {
    /// The word that COMMAND DOCS has for it under `type`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Key => "key",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Double => "double",
            Kind::Pattern => "pattern",
            Kind::UnixTime => "unix-time",
            Kind::PureToken => "pure-token",
            Kind::OneOf => "oneof",
            Kind::Block => "block",
        }
    }
}

/// What kind of value a name stands for unless the syntax says it: names mean the same in all commands.
#[rustfmt::skip]
fn kind_of_name(name: &str) -> Kind {
    match name {
        "key" | "key1" | "key2" | "newkey" | "destkey" | "sourcekey" | "source" | "destination" | "src" | "dst" => Kind::Key,
        "pattern" => Kind::Pattern,
        "unix-time-seconds" | "unix-time-milliseconds" => Kind::UnixTime,
        "bit" | "client-id" | "count" | "cursor" | "db" | "decrement" | "destination-db" | "end" | "increment"
        | "index" | "index1" | "index2" | "milliseconds" | "min-match-len" | "numfields" | "numkeys" | "offset" | "protover"
        | "seconds" | "start" | "timeout" => Kind::Integer,
        _ => Kind::String,
    }
}

impl Argument {
    /// The argument in the notation of the header, without what only serves the tree: names of groups, types.
    pub(crate) fn usage(&self) -> String {
        let listed =
            |separator| self.arguments.iter().map(Argument::usage).collect::<Vec<_>>().join(separator);
        let bare_choice = self.optional && !self.multiple && self.token.is_none();
        let body = match self.kind {
            Kind::PureToken => String::new(),
            Kind::OneOf if bare_choice => listed(" | "),
            Kind::OneOf => format!("<{}>", listed(" | ")),
            Kind::Block => listed(" "),
            _ => self.display_text.clone().unwrap_or_else(|| self.name.clone()),
        };
        let announced = |body: &str| match &self.token {
            Some(token) if body.is_empty() => token.clone(),
            Some(token) => format!("{token} {body}"),
            None => body.to_string(),
        };
        let line = match (self.multiple, self.kind) {
            (false, _) => announced(&body),
            (true, Kind::OneOf) => announced(&body) + " ...",
            (true, _) if self.multiple_token => format!("{0} [{0} ...]", announced(&body)),
            (true, _) => announced(&format!("{body} [{body} ...]")),
        };
        if self.optional { format!("[{line}]") } else { line }
    }

    fn value(name: &str, kind: Kind, shown: &str) -> Argument {
        Argument {
            display_text: Some(shown.to_string()),
            ..Argument::group(kind, name.to_string(), Vec::new())
        }
    }

    fn pure_token(word: &str) -> Argument {
        let name = word.to_ascii_lowercase();
        Argument { token: Some(word.to_string()), ..Argument::value(&name, Kind::PureToken, &name) }
    }

    fn group(kind: Kind, name: String, arguments: Vec<Argument>) -> Argument {
        Argument {
            name,
            kind,
            display_text: None,
            token: None,
            key_spec_index: None,
            optional: false,
            multiple: false,
            multiple_token: false,
            arguments,
        }
    }

    /// A single member stands for itself; more become a group that is named after them.
    fn grouped(kind: Kind, mut members: Vec<Argument>) -> Argument {
        if members.len() == 1 {
            return members.remove(0);
        }
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        Argument::group(kind, names.join("-"), members)
    }
}

/// Why a syntax line means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyntaxError {
    /// A bracket is still open at the end.
    Unclosed,
    /// This stands where it cannot.
    Unexpected(String),
    /// An alternative without anything in it.
    Empty,
    /// What an ellipsis repeats is not what precedes.
    NothingToRepeat,
    /// More brackets in each other than `DEPTH_MAX`.
    TooDeep,
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyntaxError::Unclosed => f.write_str("a bracket is not closed"),
            SyntaxError::Unexpected(text) => write!(f, "'{text}' cannot stand here"),
            SyntaxError::Empty => f.write_str("an alternative is empty"),
            SyntaxError::NothingToRepeat => {
                f.write_str("'...' repeats something other than what precedes it")
            }
            SyntaxError::TooDeep => f.write_str("too many brackets in each other"),
        }
    }
}

impl std::error::Error for SyntaxError {}

/// Brackets in each other; the deepest row has four. A bound, so that no line can exhaust the stack.
const DEPTH_MAX: usize = 16;

/// Reads a line in the notation of the header.
pub(crate) fn arguments(syntax: &str) -> Result<Vec<Argument>, SyntaxError> {
    let mut parser = Parser { rest: syntax, depth: 0 };
    let (pieces, end) = parser.pieces()?;
    let mut tree = match end {
        End::Line => assemble(pieces),
        End::At(text) => return Err(unexpected(text)),
    };
    number_keys(&mut tree, &mut 0);
    Ok(tree)
}

/// What a line consists of before tokens have taken their values; repetitions are seen here, by equality.
#[derive(PartialEq)]
enum Piece<'a> {
    Token(&'a str),
    Value(Argument),
    Optional(Argument),
    Repeated(Vec<Piece<'a>>),
}

/// What ended a row of pieces.
enum End<'a> {
    Line,
    /// A closing bracket, a bar, or the ellipsis and the bracket of `... ]`.
    At(&'a str),
}

const LAST_OF_REPETITION: &str = "... ]";

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// The next bracket, bar or word.
    fn next(&mut self) -> Option<&'a str> {
        let special = |c: char| matches!(c, '[' | ']' | '<' | '>' | '|');
        let text = self.rest.trim_start();
        let first = text.chars().next()?;
        let ends_word = |c: char| special(c) || c.is_whitespace();
        let length = if special(first) { 1 } else { text.find(ends_word).unwrap_or(text.len()) };
        let (word, rest) = text.split_at(length);
        self.rest = rest;
        Some(word)
    }

    fn pieces(&mut self) -> Result<(Vec<Piece<'a>>, End<'a>), SyntaxError> {
        let mut pieces = Vec::new();
        let mut label = None;
        loop {
            let Some(word) = self.next() else {
                return label.map_or(Ok((pieces, End::Line)), |label| Err(unexpected(label)));
            };
            match word {
                "[" => self.optional(&mut pieces, label.take())?,
                "<" => pieces.push(Piece::Value(self.required(label.take())?)),
                _ if label.is_some() => return Err(unexpected(word)),
                "]" | ">" | "|" => return Ok((pieces, End::At(word))),
                "..." if self.rest.trim_start().starts_with(']') => {
                    self.next();
                    return Ok((pieces, End::At(LAST_OF_REPETITION)));
                }
                "..." => match pieces.last_mut() {
                    Some(Piece::Value(choice)) if choice.kind == Kind::OneOf => choice.multiple = true,
                    _ => return Err(SyntaxError::NothingToRepeat),
                },
                _ if word.len() > 1 && word.ends_with('=') => label = word.strip_suffix('='),
                _ if word.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                    pieces.push(Piece::Value(value(word)?))
                }
                _ => pieces.push(Piece::Token(word)),
            }
        }
    }

    /// All that stands between a bracket and its `closer`: its alternatives, and whether `...` ends them.
    fn bracket(&mut self, closer: &str) -> Result<(Vec<Vec<Piece<'a>>>, bool), SyntaxError> {
        if self.depth == DEPTH_MAX {
            return Err(SyntaxError::TooDeep);
        }
        self.depth += 1;
        let mut alternatives = Vec::new();
        loop {
            let (pieces, end) = self.pieces()?;
            let End::At(end) = end else { return Err(SyntaxError::Unclosed) };
            if pieces.is_empty() {
                return Err(SyntaxError::Empty);
            }
            alternatives.push(pieces);
            let repeats = end == LAST_OF_REPETITION && closer == "]";
            if repeats || end == closer {
                self.depth -= 1;
                return Ok((alternatives, repeats));
            }
            if end != "|" {
                return Err(unexpected(end));
            }
        }
    }

    /// `<..>`: always a choice, since without alternatives the brackets would say nothing.
    fn required(&mut self, label: Option<&str>) -> Result<Argument, SyntaxError> {
        let (alternatives, _) = self.bracket(">")?;
        if alternatives.len() == 1 {
            return Err(unexpected("<"));
        }
        Ok(labelled(choice(alternatives), label))
    }

    /// `[..]`: adds an argument that may be left out, or declares the last of `pieces` repeated.
    fn optional(&mut self, pieces: &mut Vec<Piece<'a>>, label: Option<&str>) -> Result<(), SyntaxError> {
        let (mut alternatives, repeats) = self.bracket("]")?;
        if repeats && label.is_none() && alternatives.len() == 1 && pieces.ends_with(&alternatives[0]) {
            pieces.truncate(pieces.len() - alternatives[0].len());
            pieces.push(Piece::Repeated(alternatives.remove(0)));
            return Ok(());
        }
        let brackets_in_brackets =
            matches!(&alternatives[..], [only] if matches!(only[..], [Piece::Value(_)]));
        let mut argument = labelled(choice(alternatives), label);
        if repeats && !(brackets_in_brackets && argument.kind == Kind::OneOf) {
            return Err(SyntaxError::NothingToRepeat);
        }
        argument.multiple |= repeats;
        argument.optional = true;
        pieces.push(Piece::Optional(argument));
        Ok(())
    }
}

fn unexpected(text: &str) -> SyntaxError {
    SyntaxError::Unexpected(text.to_string())
}

/// A word for a value: `name`, `name:kind`, `name#keyspec`, `name=shown`.
fn value(whole: &str) -> Result<Argument, SyntaxError> {
    let kinds = [Kind::String, Kind::Integer, Kind::Double, Kind::Key, Kind::Pattern, Kind::UnixTime];
    let kind_named = |name: &str| kinds.iter().copied().find(|kind| kind.name() == name);
    let typed = whole.rsplit_once(':').and_then(|(word, kind)| Some((word, kind_named(kind)?)));
    let (word, kind) = typed.map_or((whole, None), |(word, kind)| (word, Some(kind)));
    let specified = word.rsplit_once('#').and_then(|(word, spec)| Some((word, spec.parse().ok()?)));
    let (word, key_spec_index) = specified.map_or((word, None), |(word, spec)| (word, Some(spec)));
    let (name, shown) = word.split_once('=').unwrap_or((word, word));
    if name.is_empty() || shown.is_empty() {
        return Err(unexpected(whole));
    }
    let value = Argument::value(name, kind.unwrap_or_else(|| kind_of_name(shown)), shown);
    Ok(Argument { key_spec_index, ..value })
}

fn labelled(argument: Argument, label: Option<&str>) -> Argument {
    let name = label.map_or_else(|| argument.name.clone(), str::to_string);
    Argument { name, ..argument }
}

fn choice(alternatives: Vec<Vec<Piece<'_>>>) -> Argument {
    let members = alternatives.into_iter().map(|pieces| Argument::grouped(Kind::Block, assemble(pieces)));
    Argument::grouped(Kind::OneOf, members.collect())
}

/// Gives each token the values that follow it.
fn assemble(pieces: Vec<Piece<'_>>) -> Vec<Argument> {
    let mut out = Vec::new();
    let mut pieces = pieces.into_iter().peekable();
    while let Some(piece) = pieces.next() {
        match piece {
            Piece::Value(argument) | Piece::Optional(argument) => out.push(argument),
            Piece::Repeated(pieces) => out.push(repeated(pieces)),
            Piece::Token(word) => {
                let mut values = Vec::new();
                while let Some(piece) = pieces.next_if(belongs_to_token) {
                    values.extend(assemble(vec![piece]));
                }
                out.push(announced(word, values));
            }
        }
    }
    out
}

fn belongs_to_token(piece: &Piece<'_>) -> bool {
    match piece {
        Piece::Value(_) => true,
        Piece::Repeated(pieces) => !matches!(pieces[..], [Piece::Token(_), ..]),
        Piece::Token(_) | Piece::Optional(_) => false,
    }
}

fn repeated(pieces: Vec<Piece<'_>>) -> Argument {
    let multiple_token = matches!(pieces[..], [Piece::Token(_), ..]);
    let argument = Argument::grouped(Kind::Block, assemble(pieces));
    Argument { multiple: true, multiple_token: multiple_token && argument.token.is_some(), ..argument }
}

fn announced(word: &str, values: Vec<Argument>) -> Argument {
    if values.is_empty() {
        return Argument::pure_token(word);
    }
    Argument { token: Some(word.to_string()), ..Argument::grouped(Kind::Block, values) }
}

/// Keys that say nothing else belong each to its own key specification, in the order of the line.
fn number_keys(arguments: &mut [Argument], next: &mut usize) {
    for argument in arguments {
        if argument.kind == Kind::Key && argument.key_spec_index.is_none() {
            argument.key_spec_index = Some(*next);
            *next += 1;
        }
        number_keys(&mut argument.arguments, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree on one line: `token name:kind#keyspec`, groups in parentheses, then `+` for multiple, `*` for
    /// multiple with its token, `?` for optional.
    fn drawn(arguments: &[Argument]) -> String {
        let one = |argument: &Argument| {
            let token = argument.token.as_ref().map_or(String::new(), |token| format!("{token} "));
            let spec = argument.key_spec_index.map_or(String::new(), |spec| format!("#{spec}"));
            let group = match argument.kind {
                Kind::OneOf | Kind::Block => format!("({})", drawn(&argument.arguments)),
                _ => String::new(),
            };
            let multiple = match (argument.multiple, argument.multiple_token) {
                (true, true) => "*",
                (true, false) => "+",
                (false, _) => "",
            };
            let optional = if argument.optional { "?" } else { "" };
            format!("{token}{}:{}{spec}{group}{multiple}{optional}", argument.name, argument.kind.name())
        };
        arguments.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(syntax: &str, expected: &str) {
        assert_eq!(drawn(&arguments(syntax).expect(syntax)), expected, "{syntax}");
    }

    #[track_caller]
    fn refused(syntax: &str, expected: SyntaxError) {
        assert_eq!(arguments(syntax), Err(expected), "{syntax}");
    }

    #[test]
    fn values_know_their_kind_and_keys_their_specification() {
        check("", "");
        check("key offset value:integer", "key:key#0 offset:integer value:integer");
        check("source destination", "source:key#0 destination:key#1");
        check("key1 key2#0 [LEN]", "key1:key#0 key2:key#0 LEN len:pure-token?");
        check("key increment:double", "key:key#0 increment:double");
        check("key unix-time-seconds", "key:key#0 unix-time-seconds:unix-time");
        check("pattern", "pattern:pattern");
        check("ip:port", "ip:port:string");
    }

    #[test]
    fn a_shown_text_may_differ_from_the_name() {
        let tree = arguments("[ADDR addr=ip:port]").expect("parses");
        assert_eq!((tree[0].name.as_str(), tree[0].display_text.as_deref()), ("addr", Some("ip:port")));
        assert_eq!(tree[0].usage(), "[ADDR ip:port]");
    }

    #[test]
    fn repetitions() {
        check("key [key ...]", "key:key#0+");
        check(
            "numkeys key value [key value ...]",
            "numkeys:integer key-value:block(key:key#0 value:string)+",
        );
        check("[section [section ...]]", "section:string+?");
        check("[ID client-id [client-id ...]]", "ID client-id:integer+?");
        check("[PREFIX prefix [PREFIX prefix ...]]", "PREFIX prefix:string*?");
        check("WEIGHTS weight [weight ...]", "WEIGHTS weight:string+");
        check(
            "[GET type offset [GET type offset ...]] x",
            "GET type-offset:block(type:string offset:integer)*? x:string",
        );
        check("STREAMS key [key ...] id [id ...]", "STREAMS key-id:block(key:key#0+ id:string+)");
    }

    #[test]
    fn choices() {
        check("mode=[WRITE | ALL]", "mode:oneof(WRITE write:pure-token ALL all:pure-token)?");
        check("<YES | NO>", "yes-no:oneof(YES yes:pure-token NO no:pure-token)");
        check("A [x]", "A a:pure-token x:string?");
        check("<a | B b> ...", "a-b:oneof(a:string B b:string)+");
        check("x=[<a | b> ...]", "x:oneof(a:string b:string)+?");
        check(
            "[TYPE type=<A | B>] [x [y]]",
            "TYPE type:oneof(A a:pure-token B b:pure-token)? x-y:block(x:string y:string?)?",
        );
        check(
            "how=[save=[NOSAVE | SAVE] [NOW] | ABORT]",
            "how:oneof(save-now:block(save:oneof(NOSAVE nosave:pure-token SAVE save:pure-token)? \
             NOW now:pure-token?) ABORT abort:pure-token)?",
        );
    }

    #[test]
    fn a_whole_command() {
        let tree = find("bitfield").expect("a row").arguments();
        assert_eq!(
            drawn(&tree),
            "key:key#0 operation:oneof(\
             GET encoding-offset:block(encoding:string offset:integer) \
             overflow-write:block(\
             OVERFLOW overflow:oneof(WRAP wrap:pure-token SAT sat:pure-token FAIL fail:pure-token)? \
             write:oneof(\
             SET encoding-offset-value:block(encoding:string offset:integer value:integer) \
             INCRBY encoding-offset-increment:block(encoding:string offset:integer increment:integer))))+?"
        );
    }

    #[test]
    fn malformed_lines_are_refused() {
        let unexpected = |text: &str| SyntaxError::Unexpected(text.to_string());
        refused("[key", SyntaxError::Unclosed);
        refused("<a | b", SyntaxError::Unclosed);
        refused("key]", unexpected("]"));
        refused("[a>", unexpected(">"));
        refused("a | b", unexpected("|"));
        refused("<a>", unexpected("<"));
        refused("a how=", unexpected("how"));
        refused("how= key", unexpected("key"));
        refused("=key", unexpected("=key"));
        refused("a=", unexpected("a"));
        refused(":double", unexpected(":double"));
        refused("[]", SyntaxError::Empty);
        refused("<a | >", SyntaxError::Empty);
        refused("...", SyntaxError::NothingToRepeat);
        refused("key ...", SyntaxError::NothingToRepeat);
        refused("key [kez ...]", SyntaxError::NothingToRepeat);
        refused("key value [key ...]", SyntaxError::NothingToRepeat);
        refused("[a | b ...]", SyntaxError::NothingToRepeat);
        refused("[TYPE <a | b> ...]", SyntaxError::NothingToRepeat);
        refused("<a | b ... ]", unexpected(LAST_OF_REPETITION));
        refused(&"[".repeat(100_000), SyntaxError::TooDeep);
    }

    /// Five of these in any order are a line or an error; and what is a line is shown as one.
    #[test]
    fn no_line_panics() {
        let words = ["[", "]", "<", ">", "|", "...", "NX", "key", "x=", "y#1", "z:integer"];
        for number in 0..words.len().pow(5) {
            let mut rest = number;
            let mut line = String::new();
            while rest > 0 {
                line = format!("{line} {}", words[rest % words.len()]);
                rest /= words.len();
            }
            if let Ok(tree) = arguments(&line) {
                let shown = tree.iter().map(Argument::usage).collect::<Vec<_>>().join(" ");
                assert!(arguments(&shown).is_ok(), "{line} is shown as {shown}");
            }
        }
    }

    #[test]
    fn the_table_is_sorted_and_unique() {
        for pair in DOCS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} before {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn names_are_found_in_any_case() {
        for doc in DOCS {
            assert_eq!(find(doc.name).map(|found| found.name), Some(doc.name));
            assert_eq!(find(&doc.name.to_lowercase()).map(|found| found.name), Some(doc.name));
        }
        for absent in ["", "SE", "SETT", "CLIENT|", "CLIENT|KIL", "|", "zz", "\u{fe}"] {
            assert!(find(absent).is_none(), "{absent}");
        }
    }

    /// Every line is shown to users as it is written, but for what only the tree needs.
    #[test]
    fn every_row_parses_and_is_shown_as_written() {
        for doc in DOCS {
            let plain = |word: &str| {
                let parts = word.split_inclusive(['[', '<']);
                let unlabelled = parts.map(|part| match part.split_once('=') {
                    Some((label, shown)) if !label.is_empty() => shown,
                    _ => part,
                });
                let shown: String = unlabelled.collect();
                shown
                    .replace(":integer", "")
                    .replace(":double", "")
                    .replace(":string", "")
                    .replace("#0", "")
                    .replace("#2", "")
            };
            let name = doc.name.rsplit('|').next().expect("split gives at least one part");
            let expected = [name].into_iter().chain(doc.syntax.split_whitespace()).map(plain);
            assert_eq!(doc.usage(), expected.collect::<Vec<_>>().join(" "));
        }
    }

    #[test]
    fn every_row_is_complete() {
        for doc in DOCS {
            let groups = [
                "string",
                "bitmap",
                "hyperloglog",
                "geo",
                "hash",
                "list",
                "set",
                "sorted-set",
                "stream",
                "pubsub",
                "generic",
                "transactions",
                "connection",
                "scripting",
                "server",
                "cluster",
            ];
            assert!(groups.contains(&doc.group), "{}", doc.name);
            assert!(doc.summary.ends_with('.') && doc.summary.len() <= 100, "{}", doc.name);
            assert!(doc.since.split('.').count() == 3, "{}", doc.name);
            assert!(!doc.complexity.is_empty() && !doc.complexity.ends_with('.'), "{}", doc.name);
            assert!(!doc.container || doc.syntax.is_empty(), "{}", doc.name);
            let parent = doc.name.split_once('|').map(|(parent, _)| find(parent).map(|found| found.group));
            assert!(parent.is_none_or(|group| group == Some(doc.group)), "{}", doc.name);
        }
    }

    #[test]
    fn help_lists_the_subcommands() {
        let lines = help("object");
        assert_eq!(lines[0], "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
        assert_eq!(lines[1..3], ["ENCODING key", "    Names the form in which a value is kept in memory."]);
        assert_eq!(lines[lines.len() - 2..], ["HELP", "    Print this help."]);
        assert_eq!(lines.iter().filter(|line| *line == "HELP").count(), 1);
        assert_eq!(help("COMMAND")[1], "(no subcommand)");
        assert!(help("DEBUG").contains(&"SLEEP seconds".to_string()));
        assert!(help("GET").is_empty() && help("CLIENT|KILL").is_empty() && help("nothing").is_empty());
        for container in DOCS.iter().filter(|doc| doc.container) {
            let lines = help(container.name);
            assert!(lines.len() >= 5 && lines.len() % 2 == 1, "{}", container.name);
            assert!(
                lines[1..].chunks(2).all(|pair| !pair[0].starts_with(' ') && pair[1].starts_with("    "))
            );
        }
    }

    #[test]
    fn flags_of_the_old_and_the_internal() {
        let flags = |name| find(name).expect("a row").doc_flags();
        assert_eq!((flags("GETSET"), flags("DEBUG")), (&["deprecated"][..], &["syscmd"][..]));
        assert!(flags("GET").is_empty());
    }

    /// DEBUG's lines are in the same notation, though nothing parses them in the server.
    #[test]
    fn the_topics_of_debug_are_sorted_and_parse() {
        assert!(DEBUG_TOPICS.is_sorted_by(|a, b| a.0 < b.0));
        for (usage, summary) in DEBUG_TOPICS {
            assert!(arguments(usage).is_ok() && summary.ends_with('.'), "{usage}");
        }
    }
}
