// A line server: a line in, a line out, a goroutine for each connection. The second argument is its known
// cause:
//
//	mutex   all requests take one mutex over 3 ms
//	own     the same with a mutex for each connection: nothing waits
//	sleep   the function answer sleeps 30 ms
//	slots   a channel admits two requests at a time, of 20 ms each
//	compute the function answer computes for some milliseconds
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

var (
	shared sync.Mutex
	slots  = make(chan struct{}, 2)
	sum    int
)

func update(lock *sync.Mutex) {
	lock.Lock()
	defer lock.Unlock()
	time.Sleep(3 * time.Millisecond)
}

func answer(cause string, own *sync.Mutex) {
	switch cause {
	case "mutex":
		update(&shared)
	case "own":
		update(own)
	case "sleep":
		time.Sleep(30 * time.Millisecond)
	case "slots":
		slots <- struct{}{}
		time.Sleep(20 * time.Millisecond)
		<-slots
	case "compute":
		count := 0
		for i := 0; i < 5_000_000; i++ {
			count += i * i
		}
		sum = count
	}
}

func serve(client net.Conn, cause string) {
	defer client.Close()
	lines := bufio.NewReader(client)
	var own sync.Mutex
	for {
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		answer(cause, &own)
		fmt.Fprintln(client, "ok")
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Println("listening", os.Args[1])
	for {
		client, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go serve(client, os.Args[2])
	}
}
