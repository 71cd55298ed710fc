//! The documentation of every command: the source of COMMAND DOCS, HELP and the hints of redis-cli.
//!
//! A row gives the arguments as a line in the notation of manuals. [`arguments`] parses it into the tree
//! that COMMAND DOCS sends, so the text for readers and the tree for code generators cannot diverge. The
//! alternative, trees written as constants, takes ten lines per command and is hard to review. A line is
//! parsed only when a client asks for it, in a few microseconds.
//!
//! ```text
//! key                a value; its name (`kind_of_name`) or a suffix gives its type: `increment:double`
//! destkey#0          a key of key specification 0; without `#`, keys are numbered from 0
//! addr=ip:port       named `addr` in the tree, shown as `ip:port`
//! NX                 a token: a word without lowercase letters
//! EX seconds         a token takes the values that follow it: a single value, or several as a block
//! [x]                optional
//! <a | b>  [a | b]   a choice; `how=[a | b]` names it, otherwise the names of its members are joined
//! x [x ...]          x once or more; x equals the preceding words: `key value [key value ...]`
//! <a | b> ...        once or more;  [<a | b> ...]  any number of times, also none
//! ```
//!
//! COMMAND DOCS sends for each argument, in this order: name, type, display_text, key_spec_index, token,
//! flags (a set of simple strings) and arguments. Absent properties are omitted.

/// The documentation of a command or, under a name such as `CLIENT|KILL`, of a subcommand.
#[derive(Debug)]
pub struct Doc {
    pub name: &'static str,
    /// The group as Redis names it: string, hash, sorted-set, generic, transactions, ...
    pub group: &'static str,
    /// The version of Redis (up to 7.2) or Valkey (later) that introduced the command.
    pub since: &'static str,
    pub complexity: &'static str,
    pub syntax: &'static str,
    pub summary: &'static str,
    pub deprecated: Option<Deprecated>,
    /// For operators and tests rather than for applications: `syscmd` among the flags.
    pub system: bool,
    /// A name that only groups subcommands and cannot be called alone.
    pub container: bool,
}

#[derive(Debug)]
pub struct Deprecated {
    pub since: &'static str,
    pub replaced_by: &'static str,
}

/// Returns the documentation of a command. `name` is in any case; a subcommand is named `client|kill`.
pub fn find(name: &str) -> Option<&'static Doc> {
    let upper = || name.bytes().map(|byte| byte.to_ascii_uppercase());
    let at = DOCS.binary_search_by(|doc| doc.name.bytes().cmp(upper())).ok()?;
    Some(&DOCS[at])
}

/// Returns the subcommands of `container`, named in any case.
pub fn subcommands(container: &str) -> impl Iterator<Item = &'static Doc> {
    DOCS.iter().filter(move |doc| {
        doc.name.split_once('|').is_some_and(|(parent, _)| parent.eq_ignore_ascii_case(container))
    })
}

/// Replies to `<CONTAINER> HELP`.
pub fn reply_help(call: &mut crate::Call<'_, '_>, container: &str) {
    let lines = help(container);
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.simple(line));
}

/// Returns the lines of `<CONTAINER> HELP`; empty if there is no such container.
pub fn help(container: &str) -> Vec<String> {
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
    /// Returns the tree that COMMAND DOCS sends under `arguments`.
    pub fn arguments(&self) -> Vec<Argument> {
        arguments(self.syntax).expect("a test parses the syntax of every row")
    }

    /// Returns the flags that COMMAND DOCS sends under `doc_flags`; an empty list is omitted there.
    pub fn doc_flags(&self) -> &'static [&'static str] {
        match (&self.deprecated, self.system) {
            (Some(_), true) => &["deprecated", "syscmd"],
            (Some(_), false) => &["deprecated"],
            (None, true) => &["syscmd"],
            (None, false) => &[],
        }
    }

    /// Formats the usage line, without the container: `LIST [TYPE ..]`, `SET key value [NX | XX] ..`.
    pub fn usage(&self) -> String {
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

/// Documents `<CONTAINER>|HELP`, which is the same in every container.
const fn help_doc(name: &'static str, group: &'static str, since: &'static str) -> Doc {
    doc(name, group, since, "O(1)", "", "Returns the subcommands with a description of each.")
}

/// The documentation of all commands, sorted by the bytes of the name.
#[rustfmt::skip]
pub const DOCS: &[Doc] = &[
    container("ACL", "server", "6.0.0", "Commands that manage users and their permissions."),
    doc("ACL|CAT", "server", "6.0.0", "O(1), or O(N) with N commands", "[category]",
        "Returns the command categories, or the commands of a category."),
    doc("ACL|DELUSER", "server", "6.0.0", "O(N) with N clients", "username [username ...]",
        "Deletes users and disconnects their clients."),
    doc("ACL|DRYRUN", "server", "7.0.0", "O(1)", "username command [arg [arg ...]]",
        "Checks whether a user may run a command; the command is not run."),
    doc("ACL|GENPASS", "server", "6.0.0", "O(1)", "[bits:integer]",
        "Generates a random password of 256 bits, or of the given number of bits."),
    doc("ACL|GETUSER", "server", "6.0.0", "O(N) with N rules of the user", "username",
        "Returns the flags, passwords and rules of a user."),
    help_doc("ACL|HELP", "server", "6.0.0"),
    doc("ACL|LIST", "server", "6.0.0", "O(N) with N users", "",
        "Returns the rules of all users, in the format of the ACL file."),
    doc("ACL|LOAD", "server", "6.0.0", "O(N) with N users", "",
        "Replaces all users with the content of the ACL file; an invalid file changes nothing."),
    doc("ACL|LOG", "server", "6.0.0", "O(N) with N entries", "operation=[count | RESET]",
        "Returns the most recent denied commands and failed logins, or clears the list."),
    doc("ACL|SAVE", "server", "6.0.0", "O(N) with N users", "",
        "Writes the rules of all users to the ACL file."),
    doc("ACL|SETUSER", "server", "6.0.0", "O(N) with N rules and users", "username [rule [rule ...]]",
        "Applies rules to a user, and creates the user if necessary."),
    doc("ACL|USERS", "server", "6.0.0", "O(N) with N users", "",
        "Returns the names of all users."),
    doc("ACL|WHOAMI", "server", "6.0.0", "O(1)", "",
        "Returns the name of the user that the connection is authenticated as."),
    doc("APPEND", "string", "2.0.0", "O(1), amortized", "key value",
        "Appends bytes to a string; a missing key counts as an empty string."),
    doc("ARCOUNT", "array", "8.8.0", "O(1)", "key",
        "Returns the number of values in an array."),
    doc("ARDEL", "array", "8.8.0", "O(log N) for each index", "key index:integer [index:integer ...]",
        "Deletes values of an array."),
    doc("ARDELRANGE", "array", "8.8.0", "O(log N) for each range; the values are freed in the background",
        "key start:integer end:integer [start:integer end:integer ...]",
        "Deletes the values within ranges of indexes of an array."),
    doc("ARGET", "array", "8.8.0", "O(log N)", "key index:integer",
        "Returns the value at an index of an array."),
    doc("ARGETRANGE", "array", "8.8.0", "O(log N+M) with M indexes", "key start:integer end:integer",
        "Returns the values at all indexes of a range of an array, with nulls for the empty ones."),
    doc("ARGREP", "array", "8.8.0", "O(log N+M*P) with M values examined and P predicates",
        "key start:string end:string predicate=<EXACT string | MATCH string | GLOB pattern | RE pattern> ... \
         options=[<AND | OR | LIMIT limit:integer | WITHVALUES | NOCASE> ...]",
        "Returns the indexes of the values in a range of an array that fulfil predicates."),
    doc("ARINFO", "array", "8.8.0", "O(S log N) with S slices of 4,096 indexes in use", "key [FULL]",
        "Returns numbers about an array."),
    doc("ARINSERT", "array", "8.8.0", "O(log N) for each value", "key value [value ...]",
        "Sets values behind the last inserted value of an array; creates a missing array."),
    doc("ARLASTITEMS", "array", "8.8.0", "O(log N+M) with M indexes", "key count:integer [REV]",
        "Returns the values that were inserted last into an array."),
    doc("ARLEN", "array", "8.8.0", "O(log N)", "key",
        "Returns the highest index of an array, plus one."),
    doc("ARMGET", "array", "8.8.0", "O(log N) for each index", "key index:integer [index:integer ...]",
        "Returns the values at several indexes of an array."),
    doc("ARMSET", "array", "8.8.0", "O(log N) for each value",
        "key index:integer value [index:integer value ...]",
        "Sets values at several indexes of an array; creates a missing array."),
    doc("ARNEXT", "array", "8.8.0", "O(1)", "key",
        "Returns the index at which ARINSERT would set the next value."),
    doc("AROP", "array", "8.8.0", "O(log N+M) with M values in the range",
        "key start:integer end:integer operation=<SUM | MIN | MAX | AND | OR | XOR | MATCH value | USED>",
        "Returns the sum, an extreme, combined bits or a count of the values in a range of an array."),
    doc("ARRING", "array", "8.8.0", "O(log N) for each value, and O(M) if M values have to be moved",
        "key size:integer value [value ...]",
        "Sets values in an array that serves as a ring; creates a missing array."),
    doc("ARSCAN", "array", "8.8.0", "O(log N+M) with M values returned",
        "key start:integer end:integer [LIMIT limit:integer]",
        "Returns the values within a range of an array, with their indexes."),
    doc("ARSEEK", "array", "8.8.0", "O(1)", "key index:integer",
        "Sets the index at which ARINSERT and ARRING go on."),
    doc("ARSET", "array", "8.8.0", "O(log N) for each value", "key index:integer value [value ...]",
        "Sets values at consecutive indexes of an array; creates a missing array."),
    doc("ASKING", "cluster", "3.0.0", "O(1)", "",
        "Allows the next command to access a slot that is being imported."),
    doc("AUTH", "connection", "1.0.0", "O(N) with N passwords of the user", "[username] password",
        "Authenticates the connection as a user."),
    container("BACKUP", "server", "8.10.0", "Commands of online backups."),
    doc("BACKUP|ABORT", "server", "8.10.0", "O(1)", "",
        "Ends a backup that is not sealed, and removes its files."),
    doc("BACKUP|CLEANUP", "server", "8.10.0", "O(1)", "",
        "Removes the files of a sealed backup."),
    help_doc("BACKUP|HELP", "server", "8.10.0"),
    doc("BACKUP|LIST", "server", "8.10.0", "O(1)", "",
        "Returns the paths of the files that do not change any more."),
    doc("BACKUP|SEAL", "server", "8.10.0", "O(1)", "",
        "Completes the backup with the data of this moment."),
    doc("BACKUP|START", "server", "8.10.0", "O(1)", "",
        "Begins a backup in the folder 'backupdirname'."),
    doc("BACKUP|STATUS", "server", "8.10.0", "O(1)", "",
        "Returns the state of the backup."),
    doc("BGREWRITEAOF", "server", "1.0.0", "O(1)", "",
        "Rewrites the append-only file in the background."),
    doc("BGSAVE", "server", "1.0.0", "O(1)", "operation=[SCHEDULE | CANCEL]",
        "Writes a snapshot to disk in the background, schedules one, or cancels it."),
    doc("BITCOUNT", "bitmap", "2.6.0", "O(N) with N bytes counted",
        "key range=[start end-unit=[end unit=[BYTE | BIT]]]",
        "Returns the number of one bits in a string, or in a range of it."),
    doc("BITFIELD", "bitmap", "3.2.0", "O(1) for each operation",
        "key operation=[<GET encoding offset | [OVERFLOW overflow=<WRAP | SAT | FAIL>] \
         write=<SET encoding offset value:integer | INCRBY encoding offset increment>> ...]",
        "Reads, sets and increments integers of any bit width inside a string."),
    doc("BITFIELD_RO", "bitmap", "6.0.0", "O(1) for each operation",
        "key [GET encoding offset [GET encoding offset ...]]",
        "Reads integers of any bit width inside a string."),
    doc("BITOP", "bitmap", "2.6.0", "O(N) with N bytes of the longest string",
        "operation=<AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]",
        "Applies a bitwise operation to strings and stores the result."),
    doc("BITPOS", "bitmap", "2.8.7", "O(N) with N bytes searched",
        "key bit range=[start end-unit=[end unit=[BYTE | BIT]]]",
        "Returns the position of the first one bit or zero bit of a string."),
    doc("BLMOVE", "list", "6.2.0", "O(1)",
        "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT> timeout:double",
        "Moves an element between two lists; blocks while the source list is empty."),
    doc("BLMOVEM", "list", "8.10.0", "O(N) with N elements moved",
        "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT> timeout:double \
         how-many=[selector=<COUNT count | EXACTLY exactly:integer> ordering=<OBO | BULK>]",
        "Moves several elements between two lists; blocks while the source list has too few."),
    doc("BLMPOP", "list", "7.0.0", "O(N+M) with N keys and M elements popped",
        "timeout:double numkeys key [key ...] where=<LEFT | RIGHT> [COUNT count]",
        "Pops elements from the first non-empty list; blocks while all are empty."),
    doc("BLPOP", "list", "2.0.0", "O(N) with N keys", "key [key ...] timeout:double",
        "Pops the first element of the first non-empty list; blocks while all are empty."),
    doc("BRPOP", "list", "2.0.0", "O(N) with N keys", "key [key ...] timeout:double",
        "Pops the last element of the first non-empty list; blocks while all are empty."),
    doc("BRPOPLPUSH", "list", "2.2.0", "O(1)", "source destination timeout:double",
        "Moves the last element of a list to the front of another; blocks while the source is empty.")
        .deprecated("6.2.0", "`BLMOVE` with the `RIGHT` and `LEFT` arguments"),
    doc("BZMPOP", "sorted-set", "7.0.0", "O(K + M log N) with K keys and M members popped",
        "timeout:double numkeys key [key ...] where=<MIN | MAX> [COUNT count]",
        "Pops members from the first non-empty sorted set; blocks while all are empty."),
    doc("BZPOPMAX", "sorted-set", "5.0.0", "O(log N) with N members",
        "key [key ...] timeout:double",
        "Pops the highest-scored member of the first non-empty sorted set; blocks if all are."),
    doc("BZPOPMIN", "sorted-set", "5.0.0", "O(log N) with N members",
        "key [key ...] timeout:double",
        "Pops the lowest-scored member of the first non-empty sorted set; blocks if all are."),
    container("CLIENT", "connection", "2.4.0", "Commands that inspect and control client connections."),
    doc("CLIENT|CACHING", "connection", "6.0.0", "O(1)", "mode=<YES | NO>",
        "Enables or disables tracking of the keys that the next command reads."),
    doc("CLIENT|CAPA", "connection", "8.0.0", "O(1)", "capability [capability ...]",
        "Declares capabilities of the client: with REDIRECT it follows a redirection to the primary."),
    doc("CLIENT|GETNAME", "connection", "2.6.9", "O(1)", "",
        "Returns the name of this connection."),
    doc("CLIENT|GETREDIR", "connection", "6.0.0", "O(1)", "",
        "Returns the ID of the client that receives this connection's invalidation messages."),
    help_doc("CLIENT|HELP", "connection", "5.0.0"),
    doc("CLIENT|ID", "connection", "5.0.0", "O(1)", "",
        "Returns the ID of this connection; IDs are never reused."),
    doc("CLIENT|IMPORT-SOURCE", "connection", "8.1.0", "O(1)", "enabled=<ON | OFF>",
        "Marks this connection as the source of an import: in import mode, no key has expired for it."),
    doc("CLIENT|INFO", "connection", "6.2.0", "O(1)", "",
        "Returns a description of this connection, in the format of CLIENT LIST."),
    doc("CLIENT|KILL", "connection", "2.4.0", "O(N) with N connections",
        "filter=<old-format=ip:port | new-format=<[ID client-id] | [TYPE client-type=<NORMAL | MASTER | \
         SLAVE | REPLICA | PUBSUB>] | [USER username] | [ADDR addr=ip:port] | [LADDR laddr=ip:port] | \
         [SKIPME skipme=<YES | NO>] | [MAXAGE maxage:integer]> ...>",
        "Closes the connections that match all filters."),
    doc("CLIENT|LIST", "connection", "2.4.0", "O(N) with N connections",
        "[TYPE client-type=<NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]] \
         [USER username] [ADDR addr=ip:port] [LADDR laddr=ip:port] \
         [SKIPME skipme=<YES | NO>] [MAXAGE maxage:integer] [NAME name] [IDLE idle:integer] [FLAGS flags] \
         [LIB-NAME lib-name] [LIB-VER lib-ver] [DB db-id:integer] [IP ip]",
        "Returns a line for each connection that matches all filters."),
    doc("CLIENT|MAINT_NOTIFICATIONS", "connection", "8.2.0", "O(1)",
        "enabled=<ON | OFF> endpoint=[MOVING-ENDPOINT-TYPE endpoint-type]",
        "Asks for notifications of failovers and shutdowns, and of the server that takes over."),
    doc("CLIENT|NO-EVICT", "connection", "7.0.0", "O(1)", "enabled=<ON | OFF>",
        "Enables or disables protection of this connection from client eviction."),
    doc("CLIENT|NO-TOUCH", "connection", "7.2.0", "O(1)", "enabled=<ON | OFF>",
        "Selects whether this connection's commands update the LRU and LFU data of keys."),
    doc("CLIENT|PAUSE", "connection", "3.0.0", "O(1)", "timeout mode=[WRITE | ALL]",
        "Suspends all commands, or only write commands, for a number of milliseconds."),
    doc("CLIENT|REPLY", "connection", "3.2.0", "O(1)", "action=<ON | OFF | SKIP>",
        "Enables or disables replies on this connection, or skips the next reply."),
    doc("CLIENT|SETINFO", "connection", "7.2.0", "O(1)", "attr=<LIB-NAME libname | LIB-VER libver>",
        "Sets the name or the version of the client library of this connection."),
    doc("CLIENT|SETNAME", "connection", "2.6.9", "O(1)", "connection-name",
        "Sets the name of this connection."),
    doc("CLIENT|TRACKING", "connection", "6.0.0", "O(1), O(N) with N prefixes",
        "status=<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] \
         [OPTIN] [OPTOUT] [NOLOOP]",
        "Enables or disables invalidation messages for keys that the client caches."),
    doc("CLIENT|TRACKINGINFO", "connection", "6.2.0", "O(1)", "",
        "Returns the tracking options of this connection."),
    doc("CLIENT|UNBLOCK", "connection", "5.0.0", "O(log N) with N connections",
        "client-id unblock-type=[TIMEOUT | ERROR]",
        "Unblocks a client that waits in a blocking command."),
    doc("CLIENT|UNPAUSE", "connection", "6.2.0", "O(N) with N paused clients", "",
        "Ends CLIENT PAUSE and runs the suspended commands."),
    container("CLUSTER", "cluster", "3.0.0",
        "Commands that show and change the map of a cluster."),
    doc("CLUSTERSCAN", "generic", "9.1.0", "O(1) for each call, O(N) for all N keys",
        "cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot:integer]",
        "Returns a part of the keys of all nodes of a cluster, with the cursor of the next part."),
    doc("CLUSTER|ADDSLOTS", "cluster", "3.0.0", "O(N) with N slots", "slot:integer [slot:integer ...]",
        "Assigns slots to a node."),
    doc("CLUSTER|ADDSLOTSRANGE", "cluster", "7.0.0", "O(N) with N slots",
        "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
        "Assigns ranges of slots to a node."),
    doc("CLUSTER|BUMPEPOCH", "cluster", "3.0.0", "O(1)", "",
        "Increments the configuration epoch of a node."),
    doc("CLUSTER|CANCELSLOTMIGRATIONS", "cluster", "9.0.0", "O(N) with N migrations", "",
        "Cancels all slot migrations."),
    doc("CLUSTER|COUNT-FAILURE-REPORTS", "cluster", "3.0.0", "O(N) with N reports", "node-id",
        "Returns how many nodes report a node as failing."),
    doc("CLUSTER|COUNTKEYSINSLOT", "cluster", "3.0.0", "O(1)", "slot:integer",
        "Returns the number of keys in a slot."),
    doc("CLUSTER|DELSLOTS", "cluster", "3.0.0", "O(N) with N slots", "slot:integer [slot:integer ...]",
        "Removes slots from a node."),
    doc("CLUSTER|DELSLOTSRANGE", "cluster", "7.0.0", "O(N) with N slots",
        "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
        "Removes ranges of slots from a node."),
    doc("CLUSTER|FAILOVER", "cluster", "3.0.0", "O(1)", "options=[FORCE | TAKEOVER]",
        "Promotes a replica to the primary of its shard."),
    doc("CLUSTER|FLUSHSLOT", "cluster", "9.0.0", "O(N) with N keys of the slot",
        "slot:integer how=[ASYNC | SYNC]",
        "Removes all keys of a slot."),
    doc("CLUSTER|FLUSHSLOTS", "cluster", "3.0.0", "O(1)", "",
        "Removes all slots from a node."),
    doc("CLUSTER|FORGET", "cluster", "3.0.0", "O(1)", "node-id",
        "Removes a node from the list of known nodes."),
    doc("CLUSTER|GETKEYSINSLOT", "cluster", "3.0.0", "O(N) with N keys returned", "slot:integer count",
        "Returns keys of a slot, up to a count."),
    doc("CLUSTER|GETSLOTMIGRATIONS", "cluster", "9.0.0", "O(N) with N migrations", "",
        "Returns the state of slot migrations."),
    help_doc("CLUSTER|HELP", "cluster", "5.0.0"),
    doc("CLUSTER|IMPORTSLOTS", "cluster", "0.1.0", "O(1)",
        "migration-id source-epoch:integer target-epoch:integer attempt:integer lane:integer",
        "Turns a connection between nodes into a part of a slot migration."),
    doc("CLUSTER|INFO", "cluster", "3.0.0", "O(1)", "",
        "Returns the state of the cluster as this node sees it."),
    doc("CLUSTER|KEYSLOT", "cluster", "3.0.0", "O(N) with N bytes of the key", "key:string",
        "Returns the slot that a key belongs to."),
    doc("CLUSTER|LINKS", "cluster", "7.0.0", "O(N) with N nodes", "",
        "Returns the connections of a node to other nodes."),
    doc("CLUSTER|MEET", "cluster", "3.0.0", "O(1)", "ip port:integer [cluster-bus-port:integer]",
        "Introduces another node to the cluster."),
    doc("CLUSTER|MIGRATESLOTS", "cluster", "9.0.0", "O(N) with N slots", "args [args ...]",
        "Moves slots to other nodes."),
    doc("CLUSTER|MIGRATION", "cluster", "8.4.0", "O(N) with N slots, or migrations", "args [args ...]",
        "Moves slots here, cancels migrations, or returns their state."),
    doc("CLUSTER|MYID", "cluster", "3.0.0", "O(1)", "",
        "Returns the ID of this node."),
    doc("CLUSTER|MYSHARDID", "cluster", "7.2.0", "O(1)", "",
        "Returns the ID of this node's shard."),
    doc("CLUSTER|NODES", "cluster", "3.0.0", "O(N) with N nodes", "",
        "Returns a line for each node of the cluster."),
    doc("CLUSTER|RELAY", "cluster", "0.1.0", "O(N) with N listeners to the channel",
        "kind channel:string message:string",
        "Publishes a message of another node to the clients of this one."),
    doc("CLUSTER|REPLICAS", "cluster", "5.0.0", "O(N) with N replicas", "node-id",
        "Returns the replicas of a node."),
    doc("CLUSTER|REPLICATE", "cluster", "3.0.0", "O(1)", "node-id",
        "Turns this node into a replica of another node."),
    doc("CLUSTER|RESET", "cluster", "3.0.0", "O(N) with N nodes", "reset-type=[HARD | SOFT]",
        "Removes this node from its cluster and clears its cluster state."),
    doc("CLUSTER|SAVECONFIG", "cluster", "3.0.0", "O(1)", "",
        "Writes the cluster state of this node to disk."),
    doc("CLUSTER|SET-CONFIG-EPOCH", "cluster", "3.0.0", "O(1)", "config-epoch:integer",
        "Sets the configuration epoch of a node that has none."),
    doc("CLUSTER|SETSLOT", "cluster", "3.0.0", "O(1)",
        "slot:integer subcommand=<IMPORTING importing=node-id | MIGRATING migrating=node-id | NODE \
         node=node-id | STABLE>",
        "Assigns a slot to a node, or starts or ends its migration."),
    doc("CLUSTER|SHARDS", "cluster", "7.0.0", "O(N) with N nodes", "",
        "Returns the slots and nodes of each shard."),
    doc("CLUSTER|SLAVES", "cluster", "3.0.0", "O(N) with N replicas", "node-id",
        "Returns the replicas of a node.")
        .deprecated("5.0.0", "`CLUSTER REPLICAS`"),
    doc("CLUSTER|SLOT-STATS", "cluster", "8.0.0", "O(N) with N slots", "args [args ...]",
        "Returns usage statistics of slots."),
    doc("CLUSTER|SLOTS", "cluster", "3.0.0", "O(N) with N nodes", "",
        "Returns the nodes that serve each range of slots.")
        .deprecated("7.0.0", "`CLUSTER SHARDS`"),
    doc("COMMAND", "server", "2.8.13", "O(N) with N commands", "",
        "Returns the arity, flags, keys and categories of all commands."),
    container("COMMANDLOG", "server", "8.1.0",
        "Commands that read the logs of slow commands, large requests and large replies."),
    doc("COMMANDLOG|GET", "server", "8.1.0", "O(N) with N entries returned",
        "count type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Returns a log's newest entries, -1 for all; STAGES after the type adds the time of each stage."),
    help_doc("COMMANDLOG|HELP", "server", "8.1.0"),
    doc("COMMANDLOG|LEN", "server", "8.1.0", "O(1)", "type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Returns the number of entries in a log."),
    doc("COMMANDLOG|RESET", "server", "8.1.0", "O(N) with N entries",
        "type=<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        "Removes all entries of a log."),
    doc("COMMAND|COUNT", "server", "2.8.13", "O(1)", "",
        "Returns the number of commands."),
    doc("COMMAND|DOCS", "server", "7.0.0", "O(N) with N commands requested",
        "[command-name [command-name ...]]",
        "Returns the documentation of the named commands, or of all commands."),
    doc("COMMAND|GETKEYS", "server", "2.8.13", "O(N) with N arguments", "command [arg [arg ...]]",
        "Returns the keys of a full command line."),
    doc("COMMAND|GETKEYSANDFLAGS", "server", "7.0.0", "O(N) with N arguments", "command [arg [arg ...]]",
        "Returns the keys of a full command line, with the access flags of each key."),
    help_doc("COMMAND|HELP", "server", "5.0.0"),
    doc("COMMAND|INFO", "server", "2.8.13", "O(N) with N commands requested",
        "[command-name [command-name ...]]",
        "Returns the COMMAND entries of the named commands, or of all commands."),
    doc("COMMAND|LIST", "server", "7.0.0", "O(N) with N commands",
        "[FILTERBY filterby=<MODULE module-name | ACLCAT category | PATTERN pattern>]",
        "Returns the names of all commands, or of those that match a filter."),
    container("CONFIG", "server", "2.0.0", "Commands that read and change the configuration."),
    doc("CONFIG|GET", "server", "2.0.0", "O(N) with N patterns", "parameter [parameter ...]",
        "Returns the parameters that match a pattern, with their current values."),
    help_doc("CONFIG|HELP", "server", "5.0.0"),
    doc("CONFIG|RESETSTAT", "server", "2.0.0", "O(1)", "",
        "Resets the counters of INFO to zero."),
    doc("CONFIG|REWRITE", "server", "2.8.0", "O(N) with N lines of the file", "",
        "Writes the current configuration to the configuration file; comments are kept."),
    doc("CONFIG|SET", "server", "2.0.0", "O(N) with N parameters", "parameter value [parameter value ...]",
        "Changes parameters at run time; if a value is invalid, nothing changes."),
    doc("COPY", "generic", "6.2.0", "O(N) with N elements, O(1) for a string",
        "source destination [DB destination-db] [REPLACE]",
        "Copies a value to another key."),
    doc("DBSIZE", "server", "1.0.0", "O(1)", "",
        "Returns the number of keys in the selected database."),
    container("DEBUG", "server", "1.0.0", "Commands for testing and debugging the server.").system(),
    doc("DECR", "string", "1.0.0", "O(1)", "key",
        "Subtracts one from an integer; a missing key counts as 0."),
    doc("DECRBY", "string", "1.0.0", "O(1)", "key decrement",
        "Subtracts a number from an integer; a missing key counts as 0."),
    doc("DEL", "generic", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Deletes keys."),
    doc("DELEX", "string", "8.4.0", "O(1), with a digest O(N) with N bytes of the string",
        "key condition=[IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest]",
        "Deletes a key, optionally if its value or the digest of its value compares as stated."),
    doc("DELIFEQ", "string", "9.0.0", "O(1)", "key value",
        "Deletes a key if its value equals the given string."),
    doc("DIGEST", "string", "8.4.0", "O(N) with N bytes of the string", "key",
        "Returns the XXH3 digest of a string, as sixteen hexadecimal digits."),
    doc("DISCARD", "transactions", "2.0.0", "O(N) with N queued commands", "",
        "Drops the queued commands and ends the transaction."),
    doc("DUMP", "generic", "2.6.0", "O(1) to find the key, O(N) to serialize its N elements", "key",
        "Returns a value in the serialized format that RESTORE reads."),
    doc("ECHO", "connection", "1.0.0", "O(1)", "message",
        "Returns the message."),
    doc("EVAL", "scripting", "2.6.0", "Depends on the script",
        "script numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script."),
    doc("EVALSHA", "scripting", "2.6.0", "Depends on the script",
        "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a cached Lua script, identified by its SHA-1 digest."),
    doc("EVALSHA_RO", "scripting", "7.0.0", "Depends on the script",
        "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a cached Lua script in read-only mode, identified by its SHA-1 digest."),
    doc("EVAL_RO", "scripting", "7.0.0", "Depends on the script",
        "script numkeys [key [key ...]] [arg [arg ...]]",
        "Runs a Lua script in read-only mode."),
    doc("EXEC", "transactions", "1.2.0", "The sum of the queued commands",
        "[<IFEQ key value | IFNE key value | NX key | XX key> ...]",
        "Runs the queued commands atomically, unless a watched key has changed or a condition fails."),
    doc("EXISTS", "generic", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Returns how many of the keys exist; a repeated key is counted each time."),
    doc("EXPIRE", "generic", "1.0.0", "O(1)", "key seconds condition=[NX | XX | GT | LT]",
        "Sets the time to live of a key, in seconds."),
    doc("EXPIREAT", "generic", "1.2.0", "O(1)", "key unix-time-seconds condition=[NX | XX | GT | LT]",
        "Sets the expiration time of a key, as a Unix timestamp in seconds."),
    doc("EXPIRETIME", "generic", "7.0.0", "O(1)", "key",
        "Returns the expiration time of a key, in seconds of Unix time."),
    doc("FAILOVER", "server", "6.2.0", "O(1)",
        "target=[TO host port:integer [FORCE]] [ABORT] [TIMEOUT milliseconds:integer]",
        "Promotes a replica to primary and turns this server into its replica."),
    doc("FCALL", "scripting", "7.0.0", "Depends on the function",
        "function numkeys [key [key ...]] [arg [arg ...]]",
        "Calls a function of a library."),
    doc("FCALL_RO", "scripting", "7.0.0", "Depends on the function",
        "function numkeys [key [key ...]] [arg [arg ...]]",
        "Calls a function in read-only mode."),
    doc("FLUSHALL", "server", "1.0.0", "O(N) with N keys in all databases", "flush-type=[ASYNC | SYNC]",
        "Deletes all keys of all databases."),
    doc("FLUSHDB", "server", "1.0.0", "O(N) with N keys in the database", "flush-type=[ASYNC | SYNC]",
        "Deletes all keys of the selected database."),
    container("FUNCTION", "scripting", "7.0.0", "Commands that manage function libraries."),
    doc("FUNCTION|DELETE", "scripting", "7.0.0", "O(N) with N functions", "library-name",
        "Deletes a library with all its functions."),
    doc("FUNCTION|DUMP", "scripting", "7.0.0", "O(N) with N bytes of code", "",
        "Returns all libraries in the serialized format that FUNCTION RESTORE reads."),
    doc("FUNCTION|FLUSH", "scripting", "7.0.0", "O(N) with N functions", "[ASYNC | SYNC]",
        "Deletes every library."),
    help_doc("FUNCTION|HELP", "scripting", "7.0.0"),
    doc("FUNCTION|KILL", "scripting", "7.0.0", "O(1)", "",
        "Stops the running function, unless it has written data."),
    doc("FUNCTION|LIST", "scripting", "7.0.0", "O(N) with N functions",
        "[LIBRARYNAME library-name-pattern] [WITHCODE]",
        "Returns the libraries and their functions."),
    doc("FUNCTION|LOAD", "scripting", "7.0.0", "O(1) plus the time to run the library code",
        "[REPLACE] function-code",
        "Loads a library from source code."),
    doc("FUNCTION|RESTORE", "scripting", "7.0.0", "O(N) with N functions",
        "serialized-value [FLUSH | APPEND | REPLACE]",
        "Loads the libraries of a FUNCTION DUMP payload."),
    doc("FUNCTION|STATS", "scripting", "7.0.0", "O(1)", "",
        "Returns the running function, and the numbers of libraries and functions."),
    doc("GEOADD", "geo", "3.2.0", "O(log N) for each member",
        "key condition=[NX | XX] [CH] longitude:double latitude:double member [longitude:double \
         latitude:double member ...]",
        "Adds members to a geospatial index, or updates their coordinates."),
    doc("GEODIST", "geo", "3.2.0", "O(log N)", "key member1 member2 unit=[M | KM | FT | MI]",
        "Returns the distance between two members, in metres by default."),
    doc("GEOHASH", "geo", "3.2.0", "O(log N) for each member", "key [member [member ...]]",
        "Returns the positions of members as geohash strings."),
    doc("GEOPOS", "geo", "3.2.0", "O(log N) for each member", "key [member [member ...]]",
        "Returns the longitude and latitude of members."),
    doc("GEORADIUS", "geo", "3.2.0", "O(N + log M) with N members near the area, M in the sorted set",
        "key longitude:double latitude:double radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] \
         [WITHHASH] count-block=[COUNT count [ANY]] order=[ASC | DESC] [STORE key] [STOREDIST key]",
        "Finds the members within a radius of a position, and returns or stores them.")
        .deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS`"),
    doc("GEORADIUSBYMEMBER", "geo", "3.2.0", "O(N + log M) with N members near the area, M in the sorted set",
        "key member radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC] [STORE key] [STOREDIST key]",
        "Finds the members within a radius of a member, and returns or stores them.")
        .deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS` and `FROMMEMBER`"),
    doc("GEORADIUSBYMEMBER_RO", "geo", "3.2.10",
        "O(N + log M) with N members near the area, M in the sorted set",
        "key member radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
         count-block=[COUNT count [ANY]] order=[ASC | DESC]",
        "Returns the members within a radius of a member.")
        .deprecated("6.2.0", "`GEOSEARCH` with `BYRADIUS` and `FROMMEMBER`"),
    doc("GEORADIUS_RO", "geo", "3.2.10", "O(N + log M) with N members near the area, M in the sorted set",
        "key longitude:double latitude:double radius:double unit=<M | KM | FT | MI> [WITHCOORD] [WITHDIST] \
         [WITHHASH] count-block=[COUNT count [ANY]] order=[ASC | DESC]",
        "Returns the members within a radius of a position.")
        .deprecated("6.2.0", "`GEOSEARCH` with `BYRADIUS`"),
    doc("GEOSEARCH", "geo", "6.2.0", "O(N + log M) with N members near the area, M in the sorted set",
        "key from=<FROMMEMBER member | FROMLONLAT longitude:double latitude:double> by=<BYRADIUS \
         radius:double unit=<M | KM | FT | MI> | BYBOX width:double height:double unit=<M | KM | FT | MI> | \
         BYPOLYGON num-vertices:integer longitude:double latitude:double [longitude:double latitude:double \
         ...]> order=[ASC | DESC] count-block=[COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        "Returns the members inside a circle, a box or a polygon; BYPOLYGON takes no FROM option."),
    doc("GEOSEARCHSTORE", "geo", "6.2.0", "O(N + log M) with N members near the area, M in the sorted set",
        "destination source from=<FROMMEMBER member | FROMLONLAT longitude:double latitude:double> \
         by=<BYRADIUS radius:double unit=<M | KM | FT | MI> | BYBOX width:double height:double unit=<M | KM \
         | FT | MI> | BYPOLYGON num-vertices:integer longitude:double latitude:double [longitude:double \
         latitude:double ...]> order=[ASC | DESC] count-block=[COUNT count [ANY]] [STOREDIST]",
        "Stores the members inside a circle, a box or a polygon in another key."),
    doc("GET", "string", "1.0.0", "O(1)", "key",
        "Returns the string at a key."),
    doc("GETBIT", "bitmap", "2.2.0", "O(1)", "key offset",
        "Returns the bit at an offset of a string; bits past the end are 0."),
    doc("GETDEL", "string", "6.2.0", "O(1)", "key",
        "Returns the string at a key and deletes the key."),
    doc("GETEX", "string", "6.2.0", "O(1)",
        "key expiration=[EX seconds | PX milliseconds | EXAT unix-time-seconds | \
         PXAT unix-time-milliseconds | PERSIST]",
        "Returns the string at a key and changes the key's expiration."),
    doc("GETRANGE", "string", "2.4.0", "O(N) with N bytes returned", "key start end",
        "Returns a substring; negative offsets count from the end."),
    doc("GETSET", "string", "1.0.0", "O(1)", "key value",
        "Sets a string and returns the previous string.")
        .deprecated("6.2.0", "`SET` with the `!GET` argument"),
    doc("HDEL", "hash", "2.0.0", "O(N) with N fields", "key field [field ...]",
        "Deletes fields of a hash, and the hash when no field is left."),
    doc("HELLO", "connection", "6.0.0", "O(1)",
        "arguments=[protover [AUTH username password] [SETNAME clientname]]",
        "Negotiates the protocol version, optionally authenticates, and returns server properties."),
    doc("HEXISTS", "hash", "2.0.0", "O(1)", "key field",
        "Returns whether a field exists in a hash."),
    doc("HEXPIRE", "hash", "9.0.0", "O(N) with N fields",
        "key seconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the time to live of hash fields, in seconds."),
    doc("HEXPIREAT", "hash", "9.0.0", "O(N) with N fields",
        "key unix-time-seconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration time of hash fields, as a Unix timestamp in seconds."),
    doc("HEXPIRETIME", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Returns the expiration time of hash fields, in seconds of Unix time."),
    doc("HGET", "hash", "2.0.0", "O(1)", "key field",
        "Returns the value of a hash field."),
    doc("HGETALL", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Returns all fields and values of a hash."),
    doc("HGETDEL", "hash", "9.1.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Returns the values of hash fields and deletes the fields."),
    doc("HGETEX", "hash", "9.0.0", "O(N) with N fields",
        "key expiration=[EX seconds | PX milliseconds | EXAT unix-time-seconds | \
         PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]",
        "Returns the values of hash fields and optionally changes their expiration."),
    container("HIMPORT", "hash", "8.10.0", "Commands that create many hashes with the same fields."),
    doc("HIMPORT|DISCARD", "hash", "8.10.0", "O(N) with N fields", "fieldset-name",
        "Removes a fieldset of the connection."),
    doc("HIMPORT|DISCARDALL", "hash", "8.10.0", "O(N) with N fieldsets", "",
        "Removes all fieldsets of the connection."),
    doc("HIMPORT|PREPARE", "hash", "8.10.0", "O(N) with N fields", "fieldset-name field [field ...]",
        "Gives a name to a list of fields, for hashes that this connection creates."),
    doc("HIMPORT|SET", "hash", "8.10.0", "O(N) with N fields", "key fieldset-name value [value ...]",
        "Creates or replaces a hash, whose fields are those of a fieldset."),
    doc("HINCRBY", "hash", "2.0.0", "O(1)", "key field increment",
        "Adds a number to the integer in a hash field; a missing field counts as 0."),
    doc("HINCRBYFLOAT", "hash", "2.6.0", "O(1)", "key field increment:double",
        "Adds a floating-point number to the number in a hash field; a missing field counts as 0."),
    doc("HKEYS", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Returns the names of all fields of a hash."),
    doc("HLEN", "hash", "2.0.0", "O(1)", "key",
        "Returns the number of fields of a hash."),
    doc("HMGET", "hash", "2.0.0", "O(N) with N fields requested", "key field [field ...]",
        "Returns the values of several hash fields."),
    doc("HMSET", "hash", "2.0.0", "O(N) with N fields", "key field value [field value ...]",
        "Sets several fields of a hash, like HSET.")
        .deprecated("4.0.0", "`HSET` with multiple field-value pairs"),
    container("HOTKEYS", "server", "8.6.0", "Commands that find the keys that use the most resources."),
    doc("HOTKEYS|GET", "server", "8.6.0", "O(K) with K keys returned", "",
        "Returns the hottest keys of the current or the last session."),
    help_doc("HOTKEYS|HELP", "server", "8.6.0"),
    doc("HOTKEYS|RESET", "server", "8.6.0", "O(1)", "",
        "Discards the results of the last session."),
    doc("HOTKEYS|START", "server", "8.6.0", "O(1)",
        "metrics=METRICS count:integer [CPU] [NET] [REQUESTS] [COUNT k:integer] [DURATION seconds:integer] \
         [SAMPLE ratio:integer]",
        "Starts a session that measures CPU time, network bytes or requests by key."),
    doc("HOTKEYS|STOP", "server", "8.6.0", "O(1)", "",
        "Ends the session and keeps its results."),
    doc("HPERSIST", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Removes the expiration time of hash fields."),
    doc("HPEXPIRE", "hash", "9.0.0", "O(N) with N fields",
        "key milliseconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the time to live of hash fields, in milliseconds."),
    doc("HPEXPIREAT", "hash", "9.0.0", "O(N) with N fields",
        "key unix-time-milliseconds condition=[NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration time of hash fields, as a Unix timestamp in milliseconds."),
    doc("HPEXPIRETIME", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Returns the expiration time of hash fields, in milliseconds of Unix time."),
    doc("HPTTL", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Returns the time to live of hash fields, in milliseconds."),
    doc("HRANDFIELD", "hash", "6.2.0", "O(N) with N fields returned", "key options=[count [WITHVALUES]]",
        "Returns random fields of a hash: distinct fields, or with repetition for a negative count."),
    doc("HSCAN", "hash", "2.8.0", "O(1) for each call, O(N) for all N fields of the hash",
        "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
        "Returns a part of the fields and values of a hash, with the cursor of the next part."),
    doc("HSET", "hash", "2.0.0", "O(N) with N fields", "key field value [field value ...]",
        "Sets fields of a hash; creates a missing hash."),
    doc("HSETEX", "hash", "9.0.0", "O(N) with N fields",
        "key key-condition=[NX | XX] fields-condition=[FNX | FXX] expiration=[EX seconds | PX milliseconds | \
         EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields field value \
         [field value ...]",
        "Sets fields of a hash, optionally with a condition and an expiration."),
    doc("HSETNX", "hash", "2.0.0", "O(1)", "key field value",
        "Sets a field of a hash, unless the field exists."),
    doc("HSTRLEN", "hash", "3.2.0", "O(1)", "key field",
        "Returns the length of the value of a hash field, in bytes."),
    doc("HTTL", "hash", "9.0.0", "O(N) with N fields",
        "key FIELDS numfields field [field ...]",
        "Returns the time to live of hash fields, in seconds."),
    doc("HVALS", "hash", "2.0.0", "O(N) with N fields of the hash", "key",
        "Returns the values of all fields of a hash."),
    doc("INCR", "string", "1.0.0", "O(1)", "key",
        "Adds one to an integer; a missing key counts as 0."),
    doc("INCRBY", "string", "1.0.0", "O(1)", "key increment",
        "Adds a number to an integer; a missing key counts as 0."),
    doc("INCRBYFLOAT", "string", "2.6.0", "O(1)", "key increment:double",
        "Adds a floating-point number to a number; a missing key counts as 0."),
    doc("INCREX", "string", "9.2.0", "O(1)",
        "key condition=[NX | XX] increment=[BYFLOAT float:double | BYINT integer:integer] \
         [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] expiration=[EX seconds | PX milliseconds | \
         EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [ENX]",
        "Adds a number to a number, within bounds, and may change the key's expiration."),
    doc("INFO", "server", "1.0.0", "O(1)", "[section [section ...]]",
        "Returns information and statistics about the server, by section."),
    doc("KEYS", "generic", "1.0.0", "O(N) with N keys in the database", "pattern",
        "Returns all keys that match a pattern; SCAN does the same in steps."),
    doc("LASTSAVE", "server", "1.0.0", "O(1)", "",
        "Returns the Unix time of the last successful save to disk."),
    container("LATENCY", "server", "2.8.13", "Commands that report the latency of commands and events."),
    doc("LATENCY|DOCTOR", "server", "2.8.13", "O(1)", "",
        "Returns a report on the recorded latency spikes, with advice."),
    doc("LATENCY|GRAPH", "server", "2.8.13", "O(1)", "event",
        "Returns an ASCII graph of an event's latency spikes."),
    help_doc("LATENCY|HELP", "server", "2.8.13"),
    doc("LATENCY|HISTOGRAM", "server", "7.0.0", "O(N) with N commands shown", "[command [command ...]]",
        "Returns the cumulative latency histogram of commands, in microseconds."),
    doc("LATENCY|HISTORY", "server", "2.8.13", "O(1)", "event",
        "Returns the times and durations of an event's latency spikes."),
    doc("LATENCY|LATEST", "server", "2.8.13", "O(1)", "",
        "Returns the latest and the longest latency spike of each event."),
    doc("LATENCY|RESET", "server", "2.8.13", "O(1)", "[event [event ...]]",
        "Discards the latency spikes of the named events, or of all events."),
    doc("LCS", "string", "7.0.0", "O(N*M) with strings of N and M bytes",
        "key1 key2#0 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
        "Returns the longest common subsequence of two strings."),
    doc("LINDEX", "list", "1.0.0", "O(log N) with N elements", "key index",
        "Returns the element at an index of a list; negative indexes count from the end."),
    doc("LINSERT", "list", "2.2.0", "O(N) with N elements up to the pivot",
        "key where=<BEFORE | AFTER> pivot element",
        "Inserts an element before or after the first occurrence of another element."),
    doc("LLEN", "list", "1.0.0", "O(1)", "key",
        "Returns the number of elements of a list."),
    doc("LMOVE", "list", "6.2.0", "O(1)",
        "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT>",
        "Moves an element from one end of a list to one end of another."),
    doc("LMOVEM", "list", "8.10.0", "O(N) with N elements moved",
        "source destination wherefrom=<LEFT | RIGHT> whereto=<LEFT | RIGHT> \
         how-many=[selector=<COUNT count | EXACTLY exactly:integer> ordering=<OBO | BULK>]",
        "Moves several elements from one end of a list to one end of another."),
    doc("LMPOP", "list", "7.0.0", "O(N+M) with N keys and M elements popped",
        "numkeys key [key ...] where=<LEFT | RIGHT> [COUNT count]",
        "Pops elements from the first non-empty list."),
    doc("LOLWUT", "server", "5.0.0", "O(1)", "[VERSION version:integer]",
        "Returns computer art: a sea that is as rough as the command latencies are uneven."),
    doc("LPOP", "list", "1.0.0", "O(N) with N elements popped", "key [count]",
        "Pops elements from the front of a list."),
    doc("LPOS", "list", "6.0.6", "O(N) with N elements examined",
        "key element [RANK rank:integer] [COUNT num-matches:integer] [MAXLEN len:integer]",
        "Returns the indexes of matching elements of a list."),
    doc("LPUSH", "list", "1.0.0", "O(N) with N elements pushed", "key element [element ...]",
        "Inserts elements at the front of a list; creates a missing list."),
    doc("LPUSHX", "list", "2.2.0", "O(N) with N elements pushed", "key element [element ...]",
        "Inserts elements at the front of a list, if the list exists."),
    doc("LRANGE", "list", "1.0.0", "O(log N+M) with N elements, M of them returned", "key start stop:integer",
        "Returns the elements within a range of indexes."),
    doc("LREM", "list", "1.0.0", "O(N) with N elements", "key count element",
        "Removes matching elements of a list, from the end if the count is negative."),
    doc("LSET", "list", "1.0.0", "O(log N) with N elements", "key index element",
        "Replaces the element at an index of a list."),
    doc("LTRIM", "list", "1.0.0", "O(log N) with N elements", "key start stop:integer",
        "Removes all elements outside a range of indexes."),
    container("MEMORY", "server", "4.0.0", "Commands that report the memory usage of the server."),
    doc("MEMORY|DOCTOR", "server", "4.0.0", "O(1)", "",
        "Returns a report on memory problems, with advice."),
    help_doc("MEMORY|HELP", "server", "4.0.0"),
    doc("MEMORY|MALLOC-STATS", "server", "4.0.0", "O(N) with N arenas of the allocator", "",
        "Returns the statistics report of the allocator."),
    doc("MEMORY|PURGE", "server", "4.0.0", "O(N) with N free pages", "",
        "Returns unused memory of the allocator to the operating system."),
    doc("MEMORY|STATS", "server", "4.0.0", "O(1)", "",
        "Returns the memory usage of the server, by purpose."),
    doc("MEMORY|USAGE", "server", "4.0.0", "O(N) with N samples", "key [SAMPLES count]",
        "Returns the size of a key and its value in bytes, estimated by samples if the value is large."),
    doc("MGET", "string", "1.0.0", "O(N) with N keys", "key [key ...]",
        "Returns the strings at several keys, read atomically."),
    doc("MIGRATE", "generic", "2.6.0", "O(N) with N elements to send",
        "host port key-selector=[key | empty-string=\"\"] destination-db timeout [COPY] [REPLACE] \
         authentication=[AUTH auth=password | AUTH2 auth2=username password] [KEYS keys=key [keys=key ...]]",
        "Moves keys to another server."),
    container("MODULE", "server", "4.0.0", "Commands that manage modules; modules are not supported."),
    help_doc("MODULE|HELP", "server", "5.0.0"),
    doc("MODULE|LIST", "server", "4.0.0", "O(1)", "",
        "Returns an empty list: modules are not supported."),
    doc("MODULE|LOAD", "server", "4.0.0", "O(1)", "path [arg [arg ...]]",
        "Returns an error: modules are not supported."),
    doc("MODULE|LOADEX", "server", "7.0.0", "O(1)",
        "path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]",
        "Returns an error: modules are not supported."),
    doc("MODULE|UNLOAD", "server", "4.0.0", "O(1)", "name",
        "Returns an error: modules are not supported."),
    doc("MONITOR", "server", "1.0.0", "O(1), then O(1) for each command that the server runs", "",
        "Streams every command that the server runs to this connection."),
    doc("MOVE", "generic", "1.0.0", "O(1)", "key db",
        "Moves a key to another database, unless the key exists there."),
    doc("MSET", "string", "1.0.1", "O(N) with N keys", "key value [key value ...]",
        "Sets several strings atomically."),
    doc("MSETEX", "string", "9.1.0", "O(N) with N keys",
        "numkeys key value [key value ...] condition=[NX | XX] expiration=[EX seconds | PX milliseconds | \
         EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Sets several strings atomically, optionally with a condition and an expiration."),
    doc("MSETNX", "string", "1.0.1", "O(N) with N keys", "key value [key value ...]",
        "Sets several strings atomically, unless one of the keys exists."),
    doc("MULTI", "transactions", "1.2.0", "O(1)", "",
        "Starts a transaction: commands are queued until EXEC."),
    container("OBJECT", "generic", "2.2.3", "Commands that inspect the internals of values."),
    doc("OBJECT|ENCODING", "generic", "2.2.3", "O(1)", "key",
        "Returns the internal encoding of a value."),
    doc("OBJECT|FREQ", "generic", "4.0.0", "O(1)", "key",
        "Returns the access frequency of a key, as a logarithmic counter."),
    help_doc("OBJECT|HELP", "generic", "6.2.0"),
    doc("OBJECT|IDLETIME", "generic", "2.2.3", "O(1)", "key",
        "Returns the number of seconds since the last access to a key."),
    doc("OBJECT|REFCOUNT", "generic", "2.2.3", "O(1)", "key",
        "Returns the number of references to a value."),
    doc("PERSIST", "generic", "2.2.0", "O(1)", "key",
        "Makes a key permanent: removes its expiration time."),
    doc("PEXPIRE", "generic", "2.6.0", "O(1)", "key milliseconds condition=[NX | XX | GT | LT]",
        "Sets the time to live of a key, in milliseconds."),
    doc("PEXPIREAT", "generic", "2.6.0", "O(1)", "key unix-time-milliseconds condition=[NX | XX | GT | LT]",
        "Sets the expiration time of a key, as a Unix timestamp in milliseconds."),
    doc("PEXPIRETIME", "generic", "7.0.0", "O(1)", "key",
        "Returns the expiration time of a key, in milliseconds of Unix time."),
    doc("PFADD", "hyperloglog", "2.8.9", "O(1) for each element", "key [element [element ...]]",
        "Adds elements to a HyperLogLog; creates a missing key."),
    doc("PFCOUNT", "hyperloglog", "2.8.9", "O(1) for one key, O(N) with N keys", "key [key ...]",
        "Returns the estimated number of distinct elements of a HyperLogLog, or of the union of several."),
    doc("PFDEBUG", "hyperloglog", "2.8.9", "N/A", "subcommand key",
        "Returns the encoding or the registers of a HyperLogLog, or converts it to the dense form.")
        .system(),
    doc("PFMERGE", "hyperloglog", "2.8.9", "O(N) with N keys", "destkey [sourcekey [sourcekey ...]]",
        "Stores the union of HyperLogLogs in a key."),
    doc("PFSELFTEST", "hyperloglog", "2.8.9", "N/A", "",
        "Tests the HyperLogLog implementation.")
        .system(),
    doc("PING", "connection", "1.0.0", "O(1)", "[message]",
        "Returns PONG, or the message."),
    doc("PSETEX", "string", "2.6.0", "O(1)", "key milliseconds value",
        "Sets a string and its time to live, in milliseconds."),
    doc("PSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N patterns", "pattern [pattern ...]",
        "Subscribes the connection to the channels that match patterns."),
    doc("PSYNC", "server", "2.8.0", "O(N) with N bytes of the stream, or N keys for a full synchronization",
        "replicationid offset:integer",
        "Starts replication on this connection, from an offset of the stream if possible."),
    doc("PTTL", "generic", "2.6.0", "O(1)", "key",
        "Returns the time to live of a key, in milliseconds."),
    doc("PUBLISH", "pubsub", "2.0.0", "O(N+M) with N subscribers of the channel and M patterns",
        "channel message",
        "Sends a message to the subscribers of a channel and returns their number."),
    container("PUBSUB", "pubsub", "2.8.0", "Commands that inspect channels and subscriptions."),
    doc("PUBSUB|CHANNELS", "pubsub", "2.8.0", "O(N) with N channels", "[pattern]",
        "Returns the channels that have subscribers."),
    help_doc("PUBSUB|HELP", "pubsub", "6.2.0"),
    doc("PUBSUB|NUMPAT", "pubsub", "2.8.0", "O(1)", "",
        "Returns the number of distinct patterns that clients subscribe to."),
    doc("PUBSUB|NUMSUB", "pubsub", "2.8.0", "O(N) with N channels requested", "[channel [channel ...]]",
        "Returns the number of subscribers of each channel."),
    doc("PUBSUB|SHARDCHANNELS", "pubsub", "7.0.0", "O(N) with N shard channels", "[pattern]",
        "Returns the shard channels that have subscribers."),
    doc("PUBSUB|SHARDNUMSUB", "pubsub", "7.0.0", "O(N) with N shard channels requested",
        "[shardchannel [shardchannel ...]]",
        "Returns the number of subscribers of each shard channel."),
    doc("PUNSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N patterns", "[pattern [pattern ...]]",
        "Ends subscriptions to patterns: the given patterns, or all."),
    doc("QUIT", "connection", "1.0.0", "O(1)", "",
        "Closes the connection after pending replies are sent."),
    doc("RANDOMKEY", "generic", "1.0.0", "O(1)", "",
        "Returns a random key of the selected database."),
    doc("READONLY", "cluster", "3.0.0", "O(1)", "",
        "Allows read commands on this connection to a cluster replica."),
    doc("READWRITE", "cluster", "3.0.0", "O(1)", "",
        "Disables the read-only mode that READONLY enabled."),
    doc("RENAME", "generic", "1.0.0", "O(1)", "key newkey",
        "Renames a key; an existing key of the new name is overwritten."),
    doc("RENAMENX", "generic", "1.0.0", "O(1)", "key newkey",
        "Renames a key, unless the new name exists."),
    doc("REPLCONF", "server", "3.0.0", "O(1)", "",
        "Exchanges replication parameters between a primary and its replica.")
        .system(),
    doc("REPLICAOF", "server", "5.0.0", "O(1)", "args=<host port:integer | NO ONE>",
        "Makes the server a replica of another server, or a primary."),
    doc("RESET", "connection", "6.2.0", "O(1)", "",
        "Resets the connection to its initial state."),
    doc("RESTORE", "generic", "2.6.0", "O(1) to add the key, O(N) or more to create its N elements",
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Creates a key from a value that DUMP has serialized."),
    doc("RESTORE-ASKING", "server", "3.0.0", "O(1) to add the key, O(N) or more to create its N elements",
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Creates a key from a DUMP payload, on a node that imports the slot.")
        .system(),
    doc("ROLE", "server", "2.8.12", "O(1)", "",
        "Returns the replication role of the server, with its primary or its replicas."),
    doc("RPOP", "list", "1.0.0", "O(N) with N elements popped", "key [count]",
        "Pops elements from the end of a list."),
    doc("RPOPLPUSH", "list", "1.2.0", "O(1)", "source destination",
        "Moves the last element of a list to the front of another list.")
        .deprecated("6.2.0", "`LMOVE` with the `RIGHT` and `LEFT` arguments"),
    doc("RPUSH", "list", "1.0.0", "O(N) with N elements pushed", "key element [element ...]",
        "Appends elements to a list; creates a missing list."),
    doc("RPUSHX", "list", "2.2.0", "O(N) with N elements pushed", "key element [element ...]",
        "Appends elements to a list, if the list exists."),
    doc("SADD", "set", "1.0.0", "O(N) with N members", "key member [member ...]",
        "Adds members to a set; creates a missing set."),
    doc("SAVE", "server", "1.0.0", "O(N) with N keys", "",
        "Writes a snapshot to disk and replies when it is complete."),
    doc("SCAN", "generic", "2.8.0", "O(1) for each call, O(N) for all N keys",
        "cursor [MATCH pattern] [COUNT count] [TYPE type]",
        "Returns a part of the keys of the selected database, with the cursor of the next part."),
    doc("SCARD", "set", "1.0.0", "O(1)", "key",
        "Returns the number of members of a set."),
    container("SCRIPT", "scripting", "2.6.0", "Commands that manage the Lua script cache."),
    doc("SCRIPT|DEBUG", "scripting", "3.2.0", "O(1)", "<YES | SYNC | NO>",
        "Accepts NO only: the script debugger is not available."),
    doc("SCRIPT|EXISTS", "scripting", "2.6.0", "O(N) with N scripts requested", "sha1 [sha1 ...]",
        "Returns which scripts are in the cache."),
    doc("SCRIPT|FLUSH", "scripting", "2.6.0", "O(N) with N scripts", "[ASYNC | SYNC]",
        "Removes all scripts from the cache."),
    help_doc("SCRIPT|HELP", "scripting", "5.0.0"),
    doc("SCRIPT|KILL", "scripting", "2.6.0", "O(1)", "",
        "Stops the running script, unless it has written data."),
    doc("SCRIPT|LOAD", "scripting", "2.6.0", "O(N) with N bytes of the script", "script",
        "Adds a script to the cache and returns its SHA-1 digest."),
    doc("SCRIPT|SHOW", "scripting", "8.0.0", "O(1)", "sha1",
        "Returns the source of a cached script."),
    doc("SDIFF", "set", "1.0.0", "O(N) with N members of all sets", "key [key ...]",
        "Returns the members of the first set that are in no other set."),
    doc("SDIFFCARD", "set", "8.10.0", "O(N) with N members of all sets",
        "numkeys key [key ...] [LIMIT limit]",
        "Returns the number of members of the first set that no other set has, up to a limit."),
    doc("SDIFFSTORE", "set", "1.0.0", "O(N) with N members of all sets", "destination key [key ...]",
        "Stores the members of the first set that are in no other set."),
    doc("SELECT", "connection", "1.0.0", "O(1)", "index",
        "Selects the database of this connection."),
    doc("SET", "string", "1.0.0", "O(1)",
        "key value condition=[NX | XX | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | \
         IFDNE ifdne-digest] [GET] expiration=[EX seconds | \
         PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Sets a string, optionally with a condition and an expiration; replaces values of any type."),
    doc("SETBIT", "bitmap", "2.2.0", "O(1)", "key offset value:integer",
        "Sets the bit at an offset of a string and returns the previous bit; extends a short string."),
    doc("SETEX", "string", "2.0.0", "O(1)", "key seconds value",
        "Sets a string and its time to live, in seconds."),
    doc("SETNX", "string", "1.0.0", "O(1)", "key value",
        "Sets a string, unless the key exists."),
    doc("SETRANGE", "string", "2.2.0", "O(N) with N bytes written", "key offset value",
        "Overwrites a part of a string; extends a short string with zero bytes."),
    doc("SHUTDOWN", "server", "1.0.0", "O(N) with N keys when saving, else O(1)",
        "how=[save=[NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] | ABORT]",
        "Saves the data if configured or requested, and stops the server."),
    doc("SINTER", "set", "1.0.0", "O(N*M) at most, with N members of the smallest of M sets", "key [key ...]",
        "Returns the intersection of sets."),
    doc("SINTERCARD", "set", "7.0.0", "O(N*M) at most, with N members of the smallest of M sets",
        "numkeys key [key ...] [LIMIT limit]",
        "Returns the number of members in the intersection of sets, up to a limit."),
    doc("SINTERSTORE", "set", "1.0.0", "O(N*M) at most, with N members of the smallest of M sets",
        "destination key [key ...]",
        "Stores the intersection of sets in a key."),
    doc("SISMEMBER", "set", "1.0.0", "O(1)", "key member",
        "Returns whether a set contains a member."),
    doc("SLAVEOF", "server", "1.0.0", "O(1)", "args=<host port:integer | NO ONE>",
        "Makes the server a replica of another server, or a primary.")
        .deprecated("5.0.0", "`REPLICAOF`"),
    container("SLOWLOG", "server", "2.2.12", "Commands that read the log of slow commands."),
    doc("SLOWLOG|GET", "server", "2.2.12", "O(N) with N entries returned", "[count]",
        "Returns the newest entries, 10 by default; STAGES adds the time of each stage."),
    help_doc("SLOWLOG|HELP", "server", "6.2.0"),
    doc("SLOWLOG|LEN", "server", "2.2.12", "O(1)", "",
        "Returns the number of slow log entries."),
    doc("SLOWLOG|RESET", "server", "2.2.12", "O(N) with N entries", "",
        "Removes all slow log entries."),
    doc("SMEMBERS", "set", "1.0.0", "O(N) with N members of the set", "key",
        "Returns all members of a set, in no particular order."),
    doc("SMISMEMBER", "set", "6.2.0", "O(N) with N members tested", "key member [member ...]",
        "Returns for each member whether the set contains it."),
    doc("SMOVE", "set", "1.0.0", "O(1)", "source destination member",
        "Moves a member from a set to another set."),
    doc("SORT", "generic", "1.0.0", "O(N+M*log(M)) with N elements, M of them returned",
        "key [BY pattern] offset_count=[LIMIT offset count] [GET pattern [GET pattern ...]] order=[ASC | \
         DESC] sorting=[ALPHA] [STORE destination#2]",
        "Sorts a list, a set or a sorted set, optionally by external keys; returns or stores the result."),
    doc("SORT_RO", "generic", "7.0.0", "O(N+M*log(M)) with N elements, M of them returned",
        "key [BY pattern] offset_count=[LIMIT offset count] [GET pattern [GET pattern ...]] order=[ASC | \
         DESC] sorting=[ALPHA]",
        "Returns the sorted elements of a list, a set or a sorted set, optionally by external keys."),
    doc("SPOP", "set", "1.0.0", "O(1), O(N) with N members to be removed", "key [count]",
        "Removes random members of a set and returns them."),
    doc("SPUBLISH", "pubsub", "7.0.0", "O(N) with N subscribers of the shard channel", "shardchannel message",
        "Sends a message to the subscribers of a shard channel and returns their number."),
    doc("SRANDMEMBER", "set", "1.0.0", "O(1), O(N) with N members returned", "key [count]",
        "Returns random members of a set: distinct members, or with repetition for a negative count."),
    doc("SREM", "set", "1.0.0", "O(N) with N members to be removed", "key member [member ...]",
        "Removes members of a set, and the set when no member is left."),
    doc("SSCAN", "set", "2.8.0", "O(1) for each call, O(N) for all N members of the set",
        "key cursor [MATCH pattern] [COUNT count]",
        "Returns a part of the members of a set, with the cursor of the next part."),
    doc("SSUBSCRIBE", "pubsub", "7.0.0", "O(N) with N shard channels", "shardchannel [shardchannel ...]",
        "Subscribes the connection to shard channels."),
    doc("STRLEN", "string", "2.2.0", "O(1)", "key",
        "Returns the length of a string in bytes."),
    doc("SUBSCRIBE", "pubsub", "2.0.0", "O(N) with N channels", "channel [channel ...]",
        "Subscribes the connection to channels."),
    doc("SUBSTR", "string", "1.0.0", "O(N) with N bytes returned", "key start end",
        "Returns a substring, like GETRANGE.")
        .deprecated("2.0.0", "`GETRANGE`"),
    doc("SUNION", "set", "1.0.0", "O(N) with N members of all sets", "key [key ...]",
        "Returns the union of sets."),
    doc("SUNIONCARD", "set", "8.10.0", "O(N) with N members of all sets",
        "numkeys key [key ...] [APPROX] [LIMIT limit]",
        "Returns the number of members in the union of sets, up to a limit."),
    doc("SUNIONSTORE", "set", "1.0.0", "O(N) with N members of all sets", "destination key [key ...]",
        "Stores the union of sets in a key."),
    doc("SUNSUBSCRIBE", "pubsub", "7.0.0", "O(N) with N shard channels", "[shardchannel [shardchannel ...]]",
        "Ends subscriptions to shard channels: the given shard channels, or all."),
    doc("SWAPDB", "server", "4.0.0", "O(N) with N clients that watch or block on keys of the two databases",
        "index1 index2",
        "Exchanges the contents of two databases, for all clients."),
    doc("SYNC", "server", "1.0.0", "O(N) with N keys", "",
        "Starts replication on this connection with a full synchronization."),
    doc("TIME", "server", "2.6.0", "O(1)", "",
        "Returns the server time as Unix seconds and microseconds."),
    doc("TOUCH", "generic", "3.2.1", "O(N) with N keys", "key [key ...]",
        "Updates the last access time of keys and returns how many keys exist."),
    doc("TTL", "generic", "1.0.0", "O(1)", "key",
        "Returns the time to live of a key, in seconds."),
    doc("TYPE", "generic", "1.0.0", "O(1)", "key",
        "Returns the type of the value at a key."),
    doc("UNLINK", "generic", "4.0.0", "O(1) for each key, then O(N) with N elements in the background",
        "key [key ...]",
        "Deletes keys; their values are freed in the background."),
    doc("UNSUBSCRIBE", "pubsub", "2.0.0", "O(N) with N channels", "[channel [channel ...]]",
        "Ends subscriptions to channels: the given channels, or all."),
    doc("UNWATCH", "transactions", "2.2.0", "O(1)", "",
        "Removes all watched keys of the connection."),
    doc("WAIT", "generic", "3.0.0", "O(1)", "numreplicas:integer timeout:integer",
        "Blocks until replicas have acknowledged the preceding writes of this connection."),
    doc("WAITAOF", "generic", "7.2.0", "O(1)", "numlocal:integer numreplicas:integer timeout:integer",
        "Blocks until the preceding writes of this connection are fsynced, locally or by replicas."),
    doc("WATCH", "transactions", "2.2.0", "O(1) for each key", "key [key ...]",
        "Watches keys: the next EXEC fails if one of the keys has changed."),
    doc("XACK", "stream", "5.0.0", "O(log N) for each entry, with N pending", "key group id [id ...]",
        "Acknowledges entries: removes them from the pending list of a group."),
    doc("XACKDEL", "stream", "8.2.0", "O(log N) for each entry",
        "key group condition=[KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "Acknowledges entries and deletes them, subject to the references of other groups."),
    doc("XADD", "stream", "5.0.0", "O(log N); trimmed entries are freed in the background",
        "key [NOMKSTREAM] condition=[KEEPREF | DELREF | ACKED] \
         idmp=[IDMPAUTO producer-id | IDMP producer-id idempotent-id] \
         trim=[strategy=<MAXLEN | MINID> operator=[= | ~] threshold [LIMIT count]] id-selector=<* | id> \
         field value [field value ...]",
        "Appends an entry to a stream; creates a missing stream."),
    doc("XAUTOCLAIM", "stream", "6.2.0", "O(M log N) with M entries examined",
        "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        "Transfers entries that have been pending for too long to a consumer, in steps."),
    doc("XCFGSET", "stream", "8.6.0", "O(N) with N entries forgotten",
        "key [IDMP-DURATION duration] [IDMP-MAXSIZE maxsize]",
        "Sets for how long a stream remembers the entries of its producers, and how many."),
    doc("XCLAIM", "stream", "5.0.0", "O(log N) for each entry",
        "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] \
         [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
        "Transfers the given pending entries to a consumer."),
    doc("XDEL", "stream", "5.0.0", "O(log N) for each entry", "key id [id ...]",
        "Deletes entries of a stream and returns the number of deleted entries."),
    doc("XDELEX", "stream", "8.2.0", "O(log N) for each entry",
        "key condition=[KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "Deletes entries of a stream, with a policy for groups in which they are pending."),
    container("XGROUP", "stream", "5.0.0", "Commands that manage consumer groups."),
    doc("XGROUP|CREATE", "stream", "5.0.0", "O(log N) with N groups",
        "key group id-selector=<id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
        "Creates a consumer group that reads the entries after an ID."),
    doc("XGROUP|CREATECONSUMER", "stream", "6.2.0", "O(log N) with N consumers", "key group consumer",
        "Creates a consumer and returns whether it is new."),
    doc("XGROUP|DELCONSUMER", "stream", "5.0.0", "O(N log N) with N pending entries of the consumer",
        "key group consumer",
        "Deletes a consumer and returns the number of its pending entries."),
    doc("XGROUP|DESTROY", "stream", "5.0.0", "O(log N) with N groups; the group is freed in the background",
        "key group",
        "Deletes a consumer group with its consumers and pending entries."),
    help_doc("XGROUP|HELP", "stream", "5.0.0"),
    doc("XGROUP|SETID", "stream", "5.0.0", "O(log N) with N groups",
        "key group id-selector=<id | $> [ENTRIESREAD entries-read]",
        "Sets the ID after which a consumer group continues to read."),
    doc("XIDMPRECORD", "stream", "8.8.0", "O(log N) with N entries remembered", "key pid iid stream-id",
        "Records which producer has sent an entry, and by which ID; for append-only files."),
    container("XINFO", "stream", "5.0.0", "Commands that inspect streams and consumer groups."),
    doc("XINFO|CONSUMERS", "stream", "5.0.0", "O(N) with N consumers", "key group",
        "Returns the consumers of a group, with their state."),
    doc("XINFO|GROUPS", "stream", "5.0.0", "O(N) with N groups", "key",
        "Returns the consumer groups of a stream, with their state."),
    help_doc("XINFO|HELP", "stream", "5.0.0"),
    doc("XINFO|STREAM", "stream", "5.0.0", "O(log N), with FULL also the number of entries listed",
        "key full-block=[FULL [COUNT count]]",
        "Returns properties of a stream; FULL adds its entries, groups and consumers."),
    doc("XLEN", "stream", "5.0.0", "O(1)", "key",
        "Returns the number of entries of a stream."),
    doc("XNACK", "stream", "8.8.0", "O(log N) for each entry, with N pending",
        "key group mode=<SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
        "Gives pending entries back to their group, from which any consumer can claim them."),
    doc("XPENDING", "stream", "5.0.0", "O(log N + M) with M entries examined",
        "key group filters=[[IDLE min-idle-time] start end count [consumer]]",
        "Returns a summary or a range of a group's unacknowledged entries."),
    doc("XRANGE", "stream", "5.0.0", "O(log N + M) with M entries returned", "key start end [COUNT count]",
        "Returns the entries of a stream between two IDs."),
    doc("XREAD", "stream", "5.0.0", "O(log N + M) for each stream, with M entries returned",
        "[COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] \
         STREAMS key [key ...] id [id ...]",
        "Returns the entries of streams after the given IDs; BLOCK waits for new entries."),
    doc("XREADGROUP", "stream", "5.0.0",
        "O(log N + M log P) for each stream, with M entries returned and P pending",
        "GROUP group consumer [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] \
         [CLAIM min-idle-time] [NOACK] STREAMS key [key ...] id [id ...]",
        "Returns new entries of streams to a consumer of a group, or its unacknowledged entries."),
    doc("XREVRANGE", "stream", "5.0.0", "O(log N + M) with M entries returned", "key end start [COUNT count]",
        "Returns the entries of a stream between two IDs, last entry first."),
    doc("XSETID", "stream", "5.0.0", "O(1)",
        "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
        "Sets the last ID and the counters of a stream; used when data is loaded."),
    doc("XTRIM", "stream", "5.0.0", "O(log N); removed entries are freed in the background",
        "key strategy=<MAXLEN | MINID> operator=[= | ~] threshold [LIMIT count] \
         condition=[KEEPREF | DELREF | ACKED]",
        "Removes the oldest entries of a stream."),
    doc("ZADD", "sorted-set", "1.2.0", "O(log N) for each member, with N members of the set",
        "key condition=[NX | XX] comparison=[GT | LT] [CH] [INCR] score:double member [score:double member \
         ...]",
        "Adds members to a sorted set, or updates their scores."),
    doc("ZCARD", "sorted-set", "1.2.0", "O(1)", "key",
        "Returns the number of members of a sorted set."),
    doc("ZCOUNT", "sorted-set", "2.0.0", "O(log N) with N members", "key min:double max:double",
        "Returns the number of members with a score in a range."),
    doc("ZDIFF", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the first of K sets",
        "numkeys key [key ...] [WITHSCORES]",
        "Returns the members of the first sorted set that are in no other sorted set."),
    doc("ZDIFFSTORE", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the first of K sets",
        "destination numkeys key [key ...]",
        "Stores the members of the first sorted set that are in no other sorted set."),
    doc("ZINCRBY", "sorted-set", "1.2.0", "O(log N) with N members", "key increment member",
        "Adds a number to the score of a member; a missing member counts as 0."),
    doc("ZINTER", "sorted-set", "6.2.0", "O(L * K * log N) with L members of the smallest of K sets",
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE aggregate=<SUM | \
         MIN | MAX | COUNT>] [WITHSCORES]",
        "Returns the intersection of sorted sets."),
    doc("ZINTERCARD", "sorted-set", "7.0.0", "O(L * K * log N) with L members of the smallest of K sets",
        "numkeys key [key ...] [LIMIT limit:integer]",
        "Returns the number of members in the intersection of sorted sets, up to a limit."),
    doc("ZINTERSTORE", "sorted-set", "2.0.0", "O(L * K * log N) with L members of the smallest of K sets",
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE \
         aggregate=<SUM | MIN | MAX | COUNT>]",
        "Stores the intersection of sorted sets in a key."),
    doc("ZLEXCOUNT", "sorted-set", "2.8.9", "O(log N) with N members", "key min max",
        "Returns the number of members in a lexicographical range; all scores must be equal."),
    doc("ZMPOP", "sorted-set", "7.0.0", "O(K + M log N) with K keys and M members popped",
        "numkeys key [key ...] where=<MIN | MAX> [COUNT count]",
        "Pops members with the lowest or the highest scores from the first non-empty sorted set."),
    doc("ZMSCORE", "sorted-set", "6.2.0", "O(log N) for each member", "key member [member ...]",
        "Returns the scores of several members."),
    doc("ZPOPMAX", "sorted-set", "5.0.0", "O(M log N) with M of N members popped",
        "key [count]",
        "Pops the members with the highest scores."),
    doc("ZPOPMIN", "sorted-set", "5.0.0", "O(M log N) with M of N members popped",
        "key [count]",
        "Pops the members with the lowest scores."),
    doc("ZRANDMEMBER", "sorted-set", "6.2.0", "O(N) with N members returned",
        "key options=[count [WITHSCORES]]",
        "Returns random members of a sorted set: distinct, or with repetition for a negative count."),
    doc("ZRANGE", "sorted-set", "1.2.0", "O(log N + M) with N members, M of which are returned",
        "key start:string stop sortby=[BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
        "Returns the members within a range of indexes, scores or names."),
    doc("ZRANGEBYLEX", "sorted-set", "2.8.9", "O(log N + M) with N members, M of which are returned",
        "key min max [LIMIT offset count]",
        "Returns the members in a lexicographical range; all scores must be equal.")
        .deprecated("6.2.0", "`ZRANGE` with the `BYLEX` argument"),
    doc("ZRANGEBYSCORE", "sorted-set", "1.0.5", "O(log N + M) with N members, M of which are returned",
        "key min:double max:double [WITHSCORES] [LIMIT offset count]",
        "Returns the members with a score in a range.")
        .deprecated("6.2.0", "`ZRANGE` with the `BYSCORE` argument"),
    doc("ZRANGESTORE", "sorted-set", "6.2.0", "O(log N + M) with N members, M of which are stored",
        "dst src min max sortby=[BYSCORE | BYLEX] [REV] [LIMIT offset count]",
        "Stores the members within a range of indexes, scores or names in another key."),
    doc("ZRANK", "sorted-set", "2.0.0", "O(log N) with N members", "key member [WITHSCORE]",
        "Returns the index of a member in ascending order of score."),
    doc("ZREM", "sorted-set", "1.2.0", "O(log N) for each member, with N members of the set",
        "key member [member ...]",
        "Removes members of a sorted set, and the sorted set when no member is left."),
    doc("ZREMRANGEBYLEX", "sorted-set", "2.8.9", "O(log N) for each member removed, with N members",
        "key min max",
        "Removes the members in a lexicographical range; all scores must be equal."),
    doc("ZREMRANGEBYRANK", "sorted-set", "2.0.0", "O(log N) for each member removed, with N members",
        "key start stop:integer",
        "Removes the members within a range of indexes."),
    doc("ZREMRANGEBYSCORE", "sorted-set", "1.2.0", "O(log N) for each member removed, with N members",
        "key min:double max:double",
        "Removes the members with a score in a range."),
    doc("ZREVRANGE", "sorted-set", "1.2.0", "O(log N + M) with N members, M of which are returned",
        "key start stop:integer [WITHSCORES]",
        "Returns the members within a range of indexes, in descending order.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` argument"),
    doc("ZREVRANGEBYLEX", "sorted-set", "2.8.9", "O(log N + M) with N members, M of which are returned",
        "key max min [LIMIT offset count]",
        "Returns the members in a lexicographical range, in descending order.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYLEX` arguments"),
    doc("ZREVRANGEBYSCORE", "sorted-set", "2.2.0", "O(log N + M) with N members, M of which are returned",
        "key max:double min:double [WITHSCORES] [LIMIT offset count]",
        "Returns the members with a score in a range, in descending order.")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYSCORE` arguments"),
    doc("ZREVRANK", "sorted-set", "2.0.0", "O(log N) with N members", "key member [WITHSCORE]",
        "Returns the index of a member in descending order of score."),
    doc("ZSCAN", "sorted-set", "2.8.0", "O(1) for each call, O(N) for all N members of the set",
        "key cursor [MATCH pattern] [COUNT count] [NOSCORES]",
        "Returns a part of the members and scores of a sorted set, with the cursor of the next part."),
    doc("ZSCORE", "sorted-set", "1.2.0", "O(log N) with N members", "key member",
        "Returns the score of a member of a sorted set."),
    doc("ZUNION", "sorted-set", "6.2.0", "O(N log N) with N members of all sets",
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE aggregate=<SUM | \
         MIN | MAX | COUNT>] [WITHSCORES]",
        "Returns the union of sorted sets."),
    doc("ZUNIONSTORE", "sorted-set", "2.0.0", "O(N log N) with N members of all sets",
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE \
         aggregate=<SUM | MIN | MAX | COUNT>]",
        "Stores the union of sorted sets in a key."),
];

/// The subcommands of DEBUG, for HELP alone: COMMAND shows DEBUG as a single command, as in Redis.
#[rustfmt::skip]
const DEBUG_TOPICS: &[(&str, &str)] = &[
    ("ACCOUNTING <0 | 1>", "Disables or enables time accounting, to measure its cost."),
    ("CHANGE-REPL-ID", "Gives the replication stream another ID: replicas that reconnect need a full sync."),
    ("CONFIG-REWRITE-FORCE-ALL", "Writes all parameters to the configuration file, defaults included."),
    ("DIGEST", "Returns a digest of all data; servers with equal data return equal digests."),
    ("DIGEST-VALUE [key [key ...]]", "Returns a digest of each value."),
    ("ERROR message", "Returns an error with the given text."),
    ("HTSTATS db", "Returns statistics of the hash tables of a database."),
    ("LOADAOF", "Deletes all data and reloads the append-only file."),
    ("LOG message", "Writes a message to the server log."),
    ("OBJECT key", "Returns the internal representation of a value."),
    ("PANIC", "Panics inside the command handler."),
    ("PAUSE-CRON <0 | 1>", "Stops or continues the timers of the workers, and delays an end by a signal."),
    ("POPULATE count [prefix] [size]", "Creates keys with string values, up to a count."),
    ("PROTOCOL type", "Returns an example of a protocol type."),
    ("QUICKLIST-PACKED-THRESHOLD size", "Sets the minimum length of list elements dumped separately."),
    ("SET-ACTIVE-EXPIRE <0 | 1>", "Disables or enables the active removal of expired keys."),
    ("SLEEP seconds", "Blocks the whole server for the given time."),
];

/// An argument of a command, or a group of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub kind: ArgumentKind,
    /// The text shown in usage lines; groups have none.
    pub display_text: Option<String>,
    /// The word in front of the argument, or the whole of a `PureToken`.
    pub token: Option<String>,
    /// The index of the key specification that finds this key.
    pub key_spec_index: Option<usize>,
    pub optional: bool,
    pub multiple: bool,
    /// Each repetition repeats the token.
    pub multiple_token: bool,
    /// The members of a block, or the alternatives of a choice.
    pub arguments: Vec<Argument>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
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

impl ArgumentKind {
    /// Returns the word that COMMAND DOCS sends under `type`.
    pub fn name(self) -> &'static str {
        match self {
            ArgumentKind::Key => "key",
            ArgumentKind::String => "string",
            ArgumentKind::Integer => "integer",
            ArgumentKind::Double => "double",
            ArgumentKind::Pattern => "pattern",
            ArgumentKind::UnixTime => "unix-time",
            ArgumentKind::PureToken => "pure-token",
            ArgumentKind::OneOf => "oneof",
            ArgumentKind::Block => "block",
        }
    }
}

/// Returns the kind of a value whose syntax gives none: a name means the same in all commands.
#[rustfmt::skip]
fn kind_of_name(name: &str) -> ArgumentKind {
    match name {
        "key" | "key1" | "key2" | "newkey" | "destkey" | "sourcekey" | "source" | "destination" | "src"
        | "dst" => ArgumentKind::Key,
        "pattern" => ArgumentKind::Pattern,
        "unix-time-seconds" | "unix-time-milliseconds" => ArgumentKind::UnixTime,
        "bit" | "client-id" | "count" | "cursor" | "db" | "decrement" | "destination-db" | "end" | "increment"
        | "index" | "index1" | "index2" | "milliseconds" | "min-match-len" | "numfields" | "numkeys"
        | "offset" | "protover" | "seconds" | "start" | "timeout" => ArgumentKind::Integer,
        _ => ArgumentKind::String,
    }
}

impl Argument {
    /// Formats the argument in the notation of the header, without names of groups and types.
    pub fn usage(&self) -> String {
        let listed =
            |separator| self.arguments.iter().map(Argument::usage).collect::<Vec<_>>().join(separator);
        let bare_choice = self.optional && !self.multiple && self.token.is_none();
        let body = match self.kind {
            ArgumentKind::PureToken => String::new(),
            ArgumentKind::OneOf if bare_choice => listed(" | "),
            ArgumentKind::OneOf => format!("<{}>", listed(" | ")),
            ArgumentKind::Block => listed(" "),
            _ => self.display_text.clone().unwrap_or_else(|| self.name.clone()),
        };
        let announced = |body: &str| match &self.token {
            Some(token) if body.is_empty() => token.clone(),
            Some(token) => format!("{token} {body}"),
            None => body.to_string(),
        };
        let line = match (self.multiple, self.kind) {
            (false, _) => announced(&body),
            (true, ArgumentKind::OneOf) => announced(&body) + " ...",
            (true, _) if self.multiple_token => format!("{0} [{0} ...]", announced(&body)),
            (true, _) => announced(&format!("{body} [{body} ...]")),
        };
        if self.optional { format!("[{line}]") } else { line }
    }

    fn value(name: &str, kind: ArgumentKind, shown: &str) -> Argument {
        Argument {
            display_text: Some(shown.to_string()),
            ..Argument::group(kind, name.to_string(), Vec::new())
        }
    }

    fn pure_token(word: &str) -> Argument {
        let name = word.to_ascii_lowercase();
        Argument { token: Some(word.to_string()), ..Argument::value(&name, ArgumentKind::PureToken, &name) }
    }

    fn group(kind: ArgumentKind, name: String, arguments: Vec<Argument>) -> Argument {
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

    /// Returns a single member as it is; several members become a group with their joined names.
    fn grouped(kind: ArgumentKind, mut members: Vec<Argument>) -> Argument {
        if members.len() == 1 {
            return members.remove(0);
        }
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        Argument::group(kind, names.join("-"), members)
    }
}

/// Why a syntax line is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyntaxError {
    /// A bracket is still open at the end.
    Unclosed,
    /// The text is not allowed in its place.
    Unexpected(String),
    /// An alternative is empty.
    Empty,
    /// The words that an ellipsis repeats do not equal the preceding words.
    NothingToRepeat,
    /// Brackets are nested deeper than `DEPTH_MAX`.
    TooDeep,
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyntaxError::Unclosed => f.write_str("a bracket is not closed"),
            SyntaxError::Unexpected(text) => write!(f, "unexpected '{text}'"),
            SyntaxError::Empty => f.write_str("an alternative is empty"),
            SyntaxError::NothingToRepeat => f.write_str("'...' does not repeat the preceding words"),
            SyntaxError::TooDeep => f.write_str("brackets are nested too deeply"),
        }
    }
}

impl std::error::Error for SyntaxError {}

/// The limit of nested brackets, so that no line can exhaust the stack. The deepest row has four.
const DEPTH_MAX: usize = 16;

/// Parses a line in the notation of the header.
pub fn arguments(syntax: &str) -> Result<Vec<Argument>, SyntaxError> {
    let mut parser = Parser { rest: syntax, depth: 0 };
    let (pieces, end) = parser.pieces()?;
    let mut tree = match end {
        End::Line => assemble(pieces),
        End::At(text) => return Err(unexpected(text)),
    };
    number_keys(&mut tree, &mut 0);
    Ok(tree)
}

/// An item of a line before tokens take their values. Repetitions are recognized here, by equality.
#[derive(PartialEq)]
enum Piece<'a> {
    Token(&'a str),
    Value(Argument),
    Optional(Argument),
    Repeated(Vec<Piece<'a>>),
}

/// The reason why a sequence of pieces ended.
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
    /// Returns the next bracket, bar or word.
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
                    Some(Piece::Value(choice)) if choice.kind == ArgumentKind::OneOf => {
                        choice.multiple = true
                    }
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

    /// Parses up to the `closer` of a bracket; returns the alternatives, and whether `...` ends them.
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

    /// Parses `<..>`: always a choice, since brackets around a single alternative have no meaning.
    fn required(&mut self, label: Option<&str>) -> Result<Argument, SyntaxError> {
        let (alternatives, _) = self.bracket(">")?;
        if alternatives.len() == 1 {
            return Err(unexpected("<"));
        }
        Ok(labelled(choice(alternatives), label))
    }

    /// Parses `[..]`: adds an optional argument, or marks the last of `pieces` as repeated.
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
        if repeats && !(brackets_in_brackets && argument.kind == ArgumentKind::OneOf) {
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

/// Parses the word of a value: `name`, `name:kind`, `name#keyspec`, `name=shown`.
fn value(whole: &str) -> Result<Argument, SyntaxError> {
    let kinds = [
        ArgumentKind::String,
        ArgumentKind::Integer,
        ArgumentKind::Double,
        ArgumentKind::Key,
        ArgumentKind::Pattern,
        ArgumentKind::UnixTime,
    ];
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
    let members =
        alternatives.into_iter().map(|pieces| Argument::grouped(ArgumentKind::Block, assemble(pieces)));
    Argument::grouped(ArgumentKind::OneOf, members.collect())
}

/// Attaches to each token the values that follow it.
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
    let argument = Argument::grouped(ArgumentKind::Block, assemble(pieces));
    Argument { multiple: true, multiple_token: multiple_token && argument.token.is_some(), ..argument }
}

fn announced(word: &str, values: Vec<Argument>) -> Argument {
    if values.is_empty() {
        return Argument::pure_token(word);
    }
    Argument { token: Some(word.to_string()), ..Argument::grouped(ArgumentKind::Block, values) }
}

/// Numbers the keys without `#`: each has its own key specification, in the order of the line.
fn number_keys(arguments: &mut [Argument], next: &mut usize) {
    for argument in arguments {
        if argument.kind == ArgumentKind::Key && argument.key_spec_index.is_none() {
            argument.key_spec_index = Some(*next);
            *next += 1;
        }
        number_keys(&mut argument.arguments, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a tree as a line: `token name:kind#keyspec`, groups in parentheses, then `+` for multiple,
    /// `*` for multiple with its token, `?` for optional.
    fn drawn(arguments: &[Argument]) -> String {
        let one = |argument: &Argument| {
            let token = argument.token.as_ref().map_or(String::new(), |token| format!("{token} "));
            let spec = argument.key_spec_index.map_or(String::new(), |spec| format!("#{spec}"));
            let group = match argument.kind {
                ArgumentKind::OneOf | ArgumentKind::Block => format!("({})", drawn(&argument.arguments)),
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
    fn arguments_have_kinds_and_key_specs() {
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
    fn display_text_may_differ_from_the_name() {
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
    fn a_complete_command_line_parses() {
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

    /// Any sequence of five words parses or is refused. The usage of a parsed line parses as well.
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

    /// The usage of a row equals its syntax line without the marks for the tree.
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
                "array",
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
        assert_eq!(lines[1..3], ["ENCODING key", "    Returns the internal encoding of a value."]);
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
    fn flags_of_deprecated_and_internal_commands() {
        let flags = |name| find(name).expect("a row").doc_flags();
        assert_eq!((flags("GETSET"), flags("DEBUG")), (&["deprecated"][..], &["syscmd"][..]));
        assert!(flags("GET").is_empty());
    }

    /// The lines of DEBUG use the same notation, although the server never parses them.
    #[test]
    fn the_topics_of_debug_are_sorted_and_parse() {
        assert!(DEBUG_TOPICS.is_sorted_by(|a, b| a.0 < b.0));
        for (usage, summary) in DEBUG_TOPICS {
            assert!(arguments(usage).is_ok() && summary.ends_with('.'), "{usage}");
        }
    }
}
