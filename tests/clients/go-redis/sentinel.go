package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	patience = 30 * time.Second
	name     = "it"
)

// Processes and their folder, which are removed when the program ends.
type stage struct {
	folder    string
	processes []*exec.Cmd
}

func (s *stage) start(command string, args ...string) *exec.Cmd {
	log := must(os.OpenFile(filepath.Join(s.folder, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	process := exec.Command(command, args...)
	process.Dir, process.Stdout, process.Stderr = s.folder, log, log
	check(process.Start() == nil, "it starts", command)
	s.processes = append(s.processes, process)
	return process
}

func (s *stage) clear() {
	for _, process := range s.processes {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	_ = os.RemoveAll(s.folder)
}

func freePort() int {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func address(port int) string { return fmt.Sprint("127.0.0.1:", port) }

func await(what string, isSo func() bool) {
	for deadline := time.Now().Add(patience); !isSo(); time.Sleep(50 * time.Millisecond) {
		check(time.Now().Before(deadline), "not in time", what)
	}
}

func awaitAnswer(port int) {
	client := redis.NewClient(&redis.Options{Addr: address(port), MaxRetries: -1})
	defer client.Close()
	await("it answers", func() bool { return client.Ping(ctx).Err() == nil })
}

// Starts a primary and two replicas; returns the primary and its port.
func (s *stage) startServers(server string) (*exec.Cmd, int) {
	var primary *exec.Cmd
	first := 0
	for number := 0; number < 3; number++ {
		port, own := freePort(), filepath.Join(s.folder, strconv.Itoa(number))
		check(os.Mkdir(own, 0o700) == nil, "a folder")
		args := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", own, "--save", "",
			"--repl-diskless-sync-delay", "0"}
		if primary != nil {
			args = append(args, "--replicaof", fmt.Sprint("127.0.0.1 ", first))
		}
		process := s.start(server, args...)
		awaitAnswer(port)
		if primary == nil {
			primary, first = process, port
		}
	}
	return primary, first
}

func (s *stage) startSentinel(primary int) int {
	port, config := freePort(), filepath.Join(s.folder, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds %[3]s 1000\nsentinel failover-timeout %[3]s 4000\n",
		port, s.folder, name, primary)
	check(os.WriteFile(config, []byte(text), 0o600) == nil, "a configuration")
	s.start("redis-sentinel", config)
	awaitAnswer(port)
	return port
}

// Counts up until this many replies, whatever happens to the connection; returns the last count.
func countUntil(client *redis.Client, replies int) (count int64) {
	deadline := time.Now().Add(patience)
	for replies > 0 {
		check(time.Now().Before(deadline), "clients do not go on")
		if next, err := client.Incr(ctx, "count").Result(); err == nil {
			count, replies = next, replies-1
			continue
		}
		time.Sleep(20 * time.Millisecond)
	}
	return count
}

// Tests go-redis' sentinel clients with redis-sentinel itself and three servers: the primary is killed while
// a client counts up; the client goes on with the replica that takes its place.
func followsASentinel(protocol int, server string) {
	s := &stage{folder: must(os.MkdirTemp("", "go-redis-sentinel"))}
	defer s.clear()
	primary, port := s.startServers(server)
	at := address(s.startSentinel(port))
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: at, Protocol: protocol})
	defer sentinel.Close()
	await("the replicas are known", func() bool {
		replicas, err := sentinel.Replicas(ctx, name).Result()
		return err == nil && len(replicas) == 2
	})
	options := redis.FailoverOptions{MasterName: name, SentinelAddrs: []string{at}, Protocol: protocol}
	client := redis.NewFailoverClient(&options)
	defer client.Close()
	count := countUntil(client, 200)
	// A dedicated connection: WAIT covers only the connection's own writes.
	one := client.Conn()
	check(one.Incr(ctx, "count").Err() == nil, "it writes")
	check(must(one.Wait(ctx, 2, 10*time.Second).Result()) == 2, "both replicas have it")
	check(one.Close() == nil, "it closes")

	check(primary.Process.Kill() == nil, "it is killed")
	check(countUntil(client, 200) > count+200, "something was lost that both replicas had")
	after := must(sentinel.GetMasterAddrByName(ctx, name).Result())
	check(after[1] != strconv.Itoa(port), "another one is the primary", after)

	// While the sentinel knows no replica of the new primary, the primary takes the replica's place.
	options.ReplicaOnly = true
	await("the other one follows, and is read from", func() bool {
		replica := redis.NewFailoverClient(&options)
		defer replica.Close()
		role, err := replica.Do(ctx, "ROLE").Slice()
		has, missing := replica.Get(ctx, "count").Result()
		isOne := err == nil && missing == nil && role[0] == "slave"
		return isOne && has == must(client.Get(ctx, "count").Result())
	})
}
