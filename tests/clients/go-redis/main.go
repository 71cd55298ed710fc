// go-redis against a running server: check PORT PROTOCOL RESTART_COMMAND. Silent when all is well.
//
// check sentinel PROTOCOL SERVER starts its own servers, and follows a sentinel.
//
// check cluster PORT PROTOCOL is a client of a cluster.
//
// check shards PORT SECONDS is one while slots move and primaries change.
//
// check failover PORT COMMAND follows the messages of two servers that change their roles.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	pipelined       = 1000
	reconnectWithin = 20 * time.Second
)

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, what string, got ...any) {
	if !holds {
		panic(fmt.Sprint(what, ": ", got))
	}
}

func connect(port string, protocol int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, Protocol: protocol})
}

func speaksTheProtocolAndKeepsBytes(client *redis.Client, protocol int) {
	info := fmt.Sprint(must(client.Do(ctx, "CLIENT", "INFO").Result()))
	check(strings.Contains(info, fmt.Sprintf("resp=%d", protocol)), "the protocol", info)
	value := bytes.Repeat([]byte{0, 1, '\r', '\n', 0xff}, 5000)
	check(must(client.Set(ctx, "bytes", value, 1000*time.Second).Result()) == "OK", "SET")
	check(bytes.Equal(must(client.Get(ctx, "bytes").Bytes()), value), "the bytes come back")
	_, err := client.Get(ctx, "missing").Result()
	check(errors.Is(err, redis.Nil), "a missing key", err)
	ttl := must(client.TTL(ctx, "bytes").Result())
	check(ttl > 0 && ttl <= 1000*time.Second, "TTL", ttl)
}

func pipelines(client *redis.Client) {
	replies := must(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for turn := 0; turn < pipelined; turn++ {
			pipe.Incr(ctx, "pipelined")
		}
		return nil
	}))
	for index, reply := range replies {
		check(reply.(*redis.IntCmd).Val() == int64(index+1), "a pipeline in order", reply)
	}
}

func errorsStayInTheirPlace(client *redis.Client) {
	pipe := client.Pipeline()
	done, failed, value := pipe.Set(ctx, "text", "abc", 0), pipe.Incr(ctx, "text"), pipe.Get(ctx, "text")
	_, _ = pipe.Exec(ctx)
	check(done.Val() == "OK" && value.Val() == "abc", "the others", done, value)
	check(failed.Err() != nil && strings.Contains(failed.Err().Error(), "not an integer"),
		"the error", failed.Err())
}

func transacts(client *redis.Client) {
	pipe := client.TxPipeline()
	set, incr, mget := pipe.Set(ctx, "a", 1, 0), pipe.Incr(ctx, "a"), pipe.MGet(ctx, "a", "none")
	must(pipe.Exec(ctx))
	check(set.Val() == "OK" && incr.Val() == 2, "a transaction", set, incr)
	check(mget.Val()[0] == "2" && mget.Val()[1] == nil, "MGET within", mget.Val())
}

func losesAWatchedRaceAndThenWins(client, other *redis.Client) {
	increment := func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Incr(ctx, "a").Err() })
		return err
	}
	err := client.Watch(ctx, func(tx *redis.Tx) error {
		must(other.Set(ctx, "a", 10, 0).Result())
		return increment(tx)
	}, "a")
	check(errors.Is(err, redis.TxFailedErr), "the watched key had changed", err)
	check(client.Watch(ctx, increment, "a") == nil, "nobody else writes")
	check(must(client.Get(ctx, "a").Int()) == 11, "once")
}

// A ring distributes keys over servers by hash; here every shard is the same server, under several names and
// in several databases.
func dealsPipelinesOutToARing(port string, protocol int) {
	names := []string{"north", "east", "south"}
	options := redis.RingOptions{Addrs: map[string]string{}, Protocol: protocol}
	for _, name := range names {
		options.Addrs[name] = "127.0.0.1:" + port
	}
	made := 0
	options.NewClient = func(one *redis.Options) *redis.Client {
		made++
		one.DB = made
		return redis.NewClient(one)
	}
	ring := redis.NewRing(&options)
	defer ring.Close()
	for turn := 0; turn < 20; turn++ {
		replies := must(ring.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for key := 0; key < pipelined; key++ {
				pipe.Incr(ctx, fmt.Sprint("ring:", key))
			}
			return nil
		}))
		for _, reply := range replies {
			check(reply.(*redis.IntCmd).Val() == int64(turn+1), "a pipeline over a ring", reply)
		}
	}
	total := int64(0)
	check(ring.ForEachShard(ctx, func(ctx context.Context, shard *redis.Client) error {
		size := must(shard.DBSize(ctx).Result())
		check(size > pipelined/10, "keys of a shard", size)
		atomic.AddInt64(&total, size)
		return nil
	}) == nil, "every shard is there")
	check(total == pipelined, "keys of the ring", total)
}

func survivesARestart(client *redis.Client, restart string) {
	must(exec.Command(restart).CombinedOutput())
	deadline := time.Now().Add(reconnectWithin)
	for client.Set(ctx, "after", "restart", 0).Err() != nil {
		check(time.Now().Before(deadline), "no reconnection")
		time.Sleep(50 * time.Millisecond)
	}
	check(must(client.Get(ctx, "after").Result()) == "restart", "after the restart")
}

func main() {
	port, protocol, restart := os.Args[1], must(strconv.Atoi(os.Args[2])), os.Args[3]
	if port == "failover" {
		failover(os.Args[2], os.Args[3])
		return
	}
	if port == "shards" {
		shards(os.Args[2], must(strconv.ParseFloat(os.Args[3], 64)))
		return
	}
	if port == "cluster" {
		cluster(os.Args[2], must(strconv.Atoi(os.Args[3])))
		return
	}
	if port == "sentinel" {
		followsASentinel(protocol, os.Args[3])
		return
	}
	client, other := connect(port, protocol), connect(port, protocol)
	must(client.FlushAll(ctx).Result())
	speaksTheProtocolAndKeepsBytes(client, protocol)
	pipelines(client)
	errorsStayInTheirPlace(client)
	transacts(client)
	losesAWatchedRaceAndThenWins(client, other)
	dealsPipelinesOutToARing(port, protocol)
	survivesARestart(client, restart)
	pipelines(client)
}
