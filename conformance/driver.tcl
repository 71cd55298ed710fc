# Runs a unit of Redis' or Valkey's test suite and records the result of each test.
#
# The suite's own runner stops at the first exception: after an unknown command in the set-up code between two
# tests, the rest of the unit never runs. A server that grows command by command needs the opposite, so this
# file replaces the runner. The suite stays as it was unpacked: while its files are read, a substitute for
# `proc` renames the few procedures of REPLACED to `suite_...`, and the versions below, mostly wrappers, take
# their place. As a result:
#
#   - a body of start_server or tags runs statement by statement; a statement that throws is recorded as the
#     failure of a test called "(setup) <its first line>", and the next statement runs;
#   - an exception inside a test is that test's failure, and the connection is renewed behind the same handle
#     (a half-read reply or an open MULTI must not fail the following tests); a dead server is restarted;
#   - a server that ends while it starts is noticed at once instead of after two minutes (Redis' suite);
#   - the server has read a deferred client's blocking command before the next command of another client is
#     sent: the tests rely on this order, which workers do not keep between clients;
#   - the tests in the skip list are left out, or with `try` run and reported when they pass;
#   - the nodes of a cluster share a map in etcd, in place of a cluster bus (CONFORMANCE_ETCD is its address);
#   - of Redis' suite, the tests that Valkey's suite has as well are left out, since where the two differ Valkey's
#     count.
#
# A read from the server blocks without limit in Tcl. The caller watches the modification time of OUT.progress
# and kills the servers listed in OUT.pids when it stands still: the read then fails, and so does the test.
#
# Run in the suite's directory:
#     tclsh driver.tcl SUITE UNIT SKIPS OUT skip|try BASEPORT PORTCOUNT TLS DIRECTIVES [ONLY...]
# With SUITE redis, CONFORMANCE_VALKEY names the directory of the tests of Valkey's suite.
# SUITE is redis or valkey, also the prefix of the suite's procedures. TLS is 1 to run everything over TLS,
# else 0. Writes OUT (a line per test: status, milliseconds, name, detail; tab-separated), OUT.pids and
# OUT.progress.

lassign $argv suite unit skips_file out mode base_port port_count over_tls directives
set only [lrange $argv 9 end]
set client_namespace ::$suite
# The suite names a file of DH parameters, which conformance/run does not make.
if {$over_tls} { lappend directives tls-dh-params-file {""} }

# --- The list of tests to leave out -------------------------------------------------------------------------

# Returns the names that SKIPS lists for `unit`; a line is "unit: name — reason".
proc listed_names {file unit} {
    set names {}
    set channel [open $file]
    fconfigure $channel -encoding utf-8
    foreach line [split [read $channel] "\n"] {
        if {$line eq "" || [string index $line 0] eq "#"} continue
        set end [string last " \u2014 " $line]
        if {![regexp {^(unit|integration)/[^ ]*: } $line] || $end < 0} {
            error "$file: not 'unit: name \u2014 reason': $line"
        }
        set colon [string first ": " $line]
        if {[string range $line 0 $colon-1] ne $unit} continue
        dict set names [string range $line $colon+2 $end-1] 0
    }
    close $channel
    return $names
}

# `listed` maps a listed name to the number of times the unit reached it.
set listed [listed_names $skips_file $unit]

# Returns patterns of the names of the tests in a file of the suite; what Tcl substitutes in a name matches
# any text.
proc name_patterns {file} {
    if {![file exists $file]} { return {} }
    set channel [open $file]
    set text [read $channel]
    close $channel
    set patterns {}
    foreach {all braced quoted} [regexp -all -line -inline {^\s*test\s+(?:\{(.*?)\}|"(.*?)")\s+\{} $text] {
        set pattern [string map {\\ \\\\ * \\* ? \\?} $braced$quoted]
        if {$quoted ne ""} { regsub -all {\$\{?[\w:]+\}?(\([^)]*\))?|\[[^\]]*\]} $pattern * pattern }
        lappend patterns [string map {\[ \\\[ \] \\\]} $pattern]
    }
    return $patterns
}

# Tests of Redis' suite of which Valkey's suite has a version: that version counts.
set superseded {}
if {$suite eq "redis"} { set superseded [name_patterns $env(CONFORMANCE_VALKEY)/$unit.tcl] }

# Returns true if `name` is to be left out; records that the list's entry has its test.
proc left_out {name} {
    global listed only mode superseded
    foreach pattern $superseded {
        if {[string match $pattern $name]} { return 1 }
    }
    if {[llength $only] > 0 && $name ni $only} { return 1 }
    if {![dict exists $listed $name]} { return 0 }
    dict incr listed $name
    if {$mode eq "try"} { return 0 }
    record skipped 0 $name
    return 1
}

# --- The record ---------------------------------------------------------------------------------------------

set out_channel [open $out w]
fconfigure $out_channel -buffering line -encoding utf-8
set pids_channel [open $out.pids w]
fconfigure $pids_channel -buffering line

proc progress {what} {
    set channel [open $::out.progress w]
    puts $channel $what
    close $channel
}

# Writes a line of OUT. A failed test of the list, which runs only with `try`, is recorded as skipped.
proc record {status elapsed name {detail ""}} {
    if {[dict exists $::listed $name]} {
        if {$status eq "passed"} { set status unneeded }
        if {$status eq "failed"} { set status skipped }
    }
    set one_line [string map {\t " " \r "" \n " | "} [string range $detail 0 1500]]
    puts $::out_channel [join [list $status $elapsed [string map {\n " "} $name] $one_line] \t]
    progress "$status: $name"
}

# --- Wrappers around the suite's procedures -----------------------------------------------------------------

set REPLACED {test start_server start_multiple_servers test_fixture R tags send_data_packet test_client_main
    get_nonloopback_addr verify_log_message count_log_message wait_for_log_messages wait_for_cluster_state}
# Redis 7.0's suite waits two minutes for a server that has ended.
if {$suite eq "redis"} { lappend REPLACED wait_server_started }

set complete 1     ;# until a statement fails that may contain tests
set test_depth 0   ;# above 0 inside a test, where an exception belongs to the test
set packets {}     ;# what the suite reported since the test began: {status data} ...

proc test {name code args} {
    global test_depth packets
    if {[left_out $name]} { return [flush_instead $code] }
    progress "running: $name"
    set before [list [llength $::servers] $::tags $::cur_test]
    set packets {}
    set start [clock milliseconds]
    incr test_depth
    set thrown [catch {uplevel 1 [list suite_test $name $code {*}$args]} message]
    incr test_depth -1
    if {$thrown} { unwind {*}$before }
    set complaint [complaint_of $thrown $message]
    set elapsed [expr {[clock milliseconds] - $start}]
    if {$complaint eq ""} {
        record passed $elapsed $name
    } else {
        record failed $elapsed $name $complaint
        recover
    }
}

# A test that is left out still empties the database if the test does: later tests count keys.
proc flush_instead {code} {
    if {[regexp {\n\s*r (flushdb|flushall)\s*\n} $code]} { catch { r flushdb } }
}

# Cuts the suite's stacks back after an exception; the remaining entries may have changed (a reconnect).
proc unwind {depth tags cur_test} {
    set ::servers [lrange $::servers 0 $depth-1]
    set ::tags $tags
    set ::cur_test $cur_test
}

# Describes an exception: its text, and the statement of the unit that threw it.
proc exception {message} {
    set where ""
    foreach {all frame} [regexp -all -inline {invoked from within\n"([^\n]*)} $::errorInfo] {
        if {![string match {uplevel *} $frame] && ![string match {suite_*} $frame]} {
            set where $frame
            break
        }
    }
    set where [string trim $where " \{\""]
    if {$where ne ""} { set where " (in: $where)" }
    return "exception: $message$where"
}

# Returns why the last test did not pass; "" if it passed.
proc complaint_of {thrown message} {
    if {$thrown} { return [exception $message] }
    set passed 0
    foreach packet $::packets {
        lassign $packet status data
        switch $status {
            ok     { set passed 1 }
            err    { return [join [lrange [split $data "\n"] 1 end] "\n"] }
            ignore { return "left out by the suite: $data" }
        }
    }
    if {!$passed} { return "the suite did not report it" }
    return ""
}

# Keeps the packets of the suite's test clients, meant for its runner's socket, in this process.
proc send_data_packet {channel status data {elapsed 0}} {
    switch $status {
        server-spawned { puts $::pids_channel $data }
        exception      { record failed 0 "(suite)" $data }
        err - ok - ignore {
            if {$::test_depth > 0} {
                lappend ::packets [list $status $data]
            } elseif {$status ne "ok" && $data ne "large memory flag not provided"} {
                record failed 0 "(suite) [lindex [split $data "\n"] 0]" $data
            }
        }
    }
}

proc start_server {options {code undefined}} {
    set more $::directives
    if {$::suite eq "valkey" && [regexp {cluster-enabled[ \{\"]+yes} $options]} {
        if {$::etcd eq ""} return
        set name [expr {$::cluster_name eq "" ? [new_cluster_name] : $::cluster_name}]
        lappend more cluster-store etcd://$::etcd cluster-name $name
    }
    if {$more ne ""} {
        # `overrides` may be there several times.
        set theirs ""
        foreach {option value} $options { if {$option eq "overrides"} { set theirs [concat $theirs $value] } }
        dict set options overrides [concat $theirs $more]
    }
    if {$code ne "undefined" && $::test_depth == 0} { set code [list run_statements $code] }
    uplevel 1 [list suite_start_server $options $code]
}

# Nodes that are started together share a map; a node that is started alone has its own.
set etcd [expr {[info exists env(CONFORMANCE_ETCD)] ? $env(CONFORMANCE_ETCD) : ""}]
set cluster_name ""
set clusters 0

proc new_cluster_name {} { return "conformance-[pid]-[incr ::clusters]" }

proc start_multiple_servers {num options code} {
    set outer $::cluster_name
    set ::cluster_name [new_cluster_name]
    try {
        uplevel 1 [list suite_start_multiple_servers $num $options $code]
    } finally {
        set ::cluster_name $outer
    }
}

# The map in etcd gives each shard its epoch, so a node refuses one that the suite gives to a new node.
proc R {n args} {
    if {$::etcd ne "" && [string equal -nocase [lrange $args 0 1] "cluster set-config-epoch"]} { return OK }
    uplevel 1 [list suite_R $n {*}$args]
}

# Waits until the replicas of a new cluster are in sync, at most five seconds: a primary that ends before has no
# successor. On the cluster bus, a replica may follow as soon as it has loaded the data.
proc wait_for_in_sync_replicas {} {
    for {set left 250} {$left > 0} {incr left -1} {
        set missing 0
        for {set i 0} {$i < [llength $::servers]} {incr i} {
            if {[s -$i role] eq "master"} {
                if {[s -$i connected_slaves] > [s -$i cluster_in_sync_replicas]} { incr missing }
            } elseif {[s -$i master_link_status] ne "up"} {
                incr missing
            }
        }
        if {!$missing} return
        after 20
    }
}

# Prepares something for the tests of `code`, which run statement by statement.
proc test_fixture {name setup teardown code} {
    if {[catch {uplevel 1 $setup} message]} {
        set ::complete 0
        record failed 0 "(setup) $name" [exception $message]
        return
    }
    if {$::etcd ne "" && $name eq "start_cluster"} { wait_for_in_sync_replicas }
    uplevel 1 [list run_statements $code]
    uplevel 1 $teardown
}

proc tags {tags code} {
    if {$::test_depth == 0} { set code [list run_statements $code] }
    uplevel 1 [list suite_tags $tags $code]
}

# The number of times the unit reached each statement.
set came_by [dict create]

# Runs a body in the caller's frame, each statement on its own.
proc run_statements {code} {
    foreach statement [statements $code] {
        set name "(setup) [string trim [lindex [split [string trim $statement] "\n"] 0]]"
        # The list may name a single occurrence of a repeated statement.
        dict incr ::came_by $name
        set numbered "$name #[dict get $::came_by $name]"
        if {[dict exists $::listed $numbered]} { set name $numbered }
        if {[dict exists $::listed $name] && [left_out $name]} continue
        set before [list [llength $::servers] $::tags $::cur_test]
        set start [clock milliseconds]
        if {[catch {uplevel 1 $statement} message]} {
            unwind {*}$before
            set ::complete 0
            record failed [expr {[clock milliseconds] - $start}] $name [exception $message]
            recover
        } elseif {[dict exists $::listed $name]} {
            record passed [expr {[clock milliseconds] - $start}] $name
        }
    }
}

# Splits a script into its statements, by lines: a statement ends where Tcl finds it complete.
proc statements {code} {
    set all {}
    set statement ""
    foreach line [split $code "\n"] {
        if {$statement eq "" && [regexp {^\s*(#|$)} $line]} continue
        append statement $line "\n"
        if {[info complete $statement] && ![string match {*\\} $line]} {
            lappend all $statement
            set statement ""
        }
    }
    if {$statement ne ""} { lappend all $statement }
    return $all
}

# --- Servers ------------------------------------------------------------------------------------------------

# Waits until the log of the server shows its process id; returns 1 when its port was taken.
proc wait_server_started {config_file stdout pid} {
    for {set waited 0} {$waited < 60000} {incr waited 20} {
        set alive [expr {![catch {exec kill -0 $pid}]}]
        set log [exec cat $stdout]
        if {[string match "* pid=$pid,*" $log]} { return 0 }
        if {[string match "*Failed listening on port*" $log]} { return 1 }
        if {!$alive} { error "the server ended at its start: [start_errors $stdout]" }
        after 20
    }
    error "the server did not log its PID: [start_errors $stdout]"
}

# Returns the last lines of a server's output, on either channel.
proc start_errors {stdout} {
    set stderr [file join [file dirname $stdout] stderr]
    string trim "[exec tail -n 3 $stdout]\n[exec tail -n 3 $stderr]"
}

# After a failure, restarts dead servers on the stack, and renews the connections to live servers.
proc recover {} {
    for {set level 0} {$level > -[llength $::servers]} {incr level -1} {
        catch {
            if {[catch {exec kill -0 [dict get [lindex $::servers end+$level] pid]}]} {
                restart_server $level true false
            } else {
                renew_connection $level
            }
        }
    }
}

# Opens a new connection behind the handle that the unit holds, in the suite's database.
proc renew_connection {level} {
    set server [lindex $::servers end+$level]
    if {![dict exists $server client]} { return [reconnect $level] }
    set handle [dict get $server client]
    regexp {\d+$} $handle id
    set ns $::client_namespace
    catch { close [set ${ns}::fd($id)] }
    set connect [expr {$::over_tls ? "::tls::socket" : "socket"}]
    set ${ns}::fd($id) [$connect [dict get $server host] [dict get $server port]]
    fconfigure [set ${ns}::fd($id)] -translation binary
    foreach {setting value} {blocking 1 deferred 0 readraw 0} { set ${ns}::${setting}($id) $value }
    ${ns}::${::suite}_reset_state $id
    if {[dict exists $server config requirepass]} return
    $handle select 9
    $handle client unpause ;# a pause left behind would hold up every test that follows
}

# Tests do not use the host's own address: connections go over loopback, unless the caller runs this in a
# network namespace and names the address there. Without an address the suite leaves such assertions out.
proc get_nonloopback_addr {} {
    if {[info exists ::env(CONFORMANCE_ADDRESS)]} { return $::env(CONFORMANCE_ADDRESS) }
    return ""
}

# The suite checks the server log once, at once. In Evenkeel a separate thread writes the server log, so a
# line may come a moment after the reply to the command that caused it.
proc verify_log_message {server pattern from_line} {
    for {set left 100} {
        [catch {suite_verify_log_message $server $pattern $from_line} message]
    } {incr left -1} {
        if {$left == 0} { error $message }
        after 10
    }
}

# The same: a count of nothing is looked at again.
proc count_log_message {server pattern} {
    for {set left 20} {$left > 0 && [suite_count_log_message $server $pattern] == 0} {incr left -1} { after 5 }
    suite_count_log_message $server $pattern
}

proc wait_for_log_messages {server patterns from_line maxtries delay} {
    if {$maxtries * $delay < 1000} { lassign {100 10} maxtries delay }
    suite_wait_for_log_messages $server $patterns $from_line $maxtries $delay
}

# A server that was told to end closes its port a moment before its process is gone: the suite asks every process.
proc wait_for_cluster_state {state} {
    for {set left 100} {[catch {suite_wait_for_cluster_state $state} message]} {incr left -1} {
        if {$left == 0 || ![string match "*connection refused*" $message]} { error $message }
        after 20
    }
}

# Tests let two clients block in turn, then let a third client push, and expect the two to be served in that
# order, without checking that they already wait. A single thread takes requests in the order of their
# arrival; with several threads, the machine may delay one.
set BLOCKING {blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin wait xread xreadgroup}

proc dispatch {id method args} {
    set ns $::client_namespace
    set code [catch {${ns}::suite_dispatch $id $method {*}$args} result]
    if {!$code && [string tolower $method] in $::BLOCKING && [set ${ns}::deferred($id)]} { await_taken $id }
    return -code $code $result
}

# Waits until the server has read all sent bytes, at most a tenth of a second: a test may have put it to
# sleep.
proc await_taken {id} {
    set ns $::client_namespace
    set own_port [lindex [fconfigure [set ${ns}::fd($id)] -sockname] 2]
    set form {:%04X [0-9A-F]+:%04X 01 [0-9A-F]+:([0-9A-F]+)}
    set server_end [format $form [lindex [set ${ns}::addr($id)] 1] $own_port]
    for {set left 100} {$left > 0} {incr left -1} {
        set table [open /proc/net/tcp]
        set known [regexp $server_end [read $table] all unread]
        close $table
        after 1 ;# after reading a command, the server takes a moment to execute it
        if {!$known || $unread eq "00000000"} return
    }
}

# --- Reading the suite and running the unit -----------------------------------------------------------------

# The suite's main program, started as a test client, calls this at the end of its file: nothing to do yet.
proc test_client_main {port} {}

# Units whose tests with the tag large-memory run; the suite runs them on demand only. In other units they
# have values of more than 4 GiB, or scripts of more than 1 GiB.
set LARGE {unit/bitops unit/hyperloglog}

# Reads the suite with the procedures above in place of its own. A listening socket stands in for its runner:
# a test needs a port in use.
proc read_suite {} {
    global argv
    set runner [socket -server {apply {{channel args} {close $channel}}} -myaddr 127.0.0.1 0]
    set port [lindex [fconfigure $runner -sockname] 2]
    set argv [list --client $port --clients 1 --baseport $::base_port --portcount $::port_count]
    if {$::unit in $::LARGE} { lappend argv --large-memory }
    if {$::over_tls} { lappend argv --tls }
    rename proc define
    define proc {name arguments body} {
        if {$name in $::REPLACED} { set name suite_$name }
        uplevel 1 [list define $name $arguments $body]
    }
    uplevel #0 source tests/test_helper.tcl
    rename proc ""
    rename define proc
    set ns $::client_namespace
    rename ${ns}::__dispatch__ ${ns}::suite_dispatch
    interp alias {} ${ns}::__dispatch__ {} dispatch
    set ::test_server_fd none
}

# The unit's variables live in this frame, as they do in the suite's own runner.
proc run_unit {unit} {
    set ::curfile tests/$unit.tcl
    set channel [open $::curfile]
    set code [read $channel]
    close $channel
    run_statements $code
}

# A panic that a server caught is still a defect. So is a list entry without its test, if the unit reached all
# of its tests.
proc check_afterwards {} {
    foreach log [glob -nocomplain tests/tmp/server.[pid].*/stderr tests/tmp/server.[pid].*/stdout] {
        if {![catch {exec grep -m1 -A1 "panicked at" $log} panic]} { record failed 0 "(panic) $log" $panic }
    }
    if {[llength $::only] > 0 || !$::complete} return
    dict for {name met} $::listed {
        if {$met} continue
        puts $::out_channel "stale\t0\t$name\tthe unit has no such test"
    }
}

read_suite
run_unit $unit
check_afterwards
puts $out_channel "end\t0\t$unit\t"
