//! nginx, the reference for HTTP: a single process that answers every request with the same bytes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::server::new_directory;
use crate::{interrupt, sys};

const START_TIME_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running nginx, which ends with this value.
pub(crate) struct Nginx {
    child: Child,
    directory: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Nginx {
    /// Starts it on these CPUs, answering `body`; `None` if it is not installed.
    pub(crate) fn start(cpus: &[usize], body: &str) -> Result<Option<Nginx>> {
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx"]
            .into_iter()
            .find(|path| std::fs::exists(path).unwrap_or(false));
        let Some(program) = program else { return Ok(None) };
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let directory = new_directory()?;
        let config = format!(
            "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 10000; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; default_type text/plain;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;\n\
             uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             server {{ listen 127.0.0.1:{port} backlog=511; location / {{ return 200 \"{body}\"; }} }} }}\n",
            directory.display()
        );
        let path = directory.join("nginx.conf");
        std::fs::write(&path, config).context("cannot write the configuration of nginx")?;
        let pinned = cpus.to_vec();
        let prepare = move || {
            sys::die_with_parent()?;
            sys::pin(&pinned)
        };
        let mut command = Command::new(program);
        command.arg("-c").arg(&path).arg("-p").arg(&directory).stdin(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec, both calls only make system calls.
        unsafe { command.process_group(0).pre_exec(prepare) };
        let child = command.spawn().context("cannot start nginx")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let nginx = Nginx { child, directory, address };
        let until = Instant::now() + START_TIME_MAX;
        while TcpStream::connect(address).is_err() {
            if Instant::now() >= until {
                bail!("nginx does not listen; see {}/error.log", nginx.directory.display());
            }
            interrupt::sleep(POLL_INTERVAL)?;
        }
        Ok(Some(nginx))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
