//! One running server.

use std::{
    fmt,
    fs::{self, File},
    io::Read as _,
    net::{Ipv4Addr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    binaries::{Binaries, INSTALL_HINT},
    command,
    guard::Guard,
    patience,
    place::Place,
};

/// The role that owns a private cluster.
pub const SUPERUSER: &str = "postgres";

/// A fresh cluster starts in well under a second; a loaded machine may need more.
const START_BOUND: Duration = Duration::from_mins(1);

/// How long a stop waits after each of its signals, gentlest first: fast shutdown, immediate shutdown, kill.
const STOP_STEPS: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_secs(10)),
    (Signal::QUIT, Duration::from_secs(5)),
    (Signal::KILL, Duration::from_secs(5)),
];

/// A free port may be taken by another process before the server binds it; then another one is tried.
const PORT_TRIES: usize = 5;

/// Bytes of randomness in the password.
const PASSWORD_BYTES: usize = 24;

/// Lines of the server's log that an error shows.
const LOG_LINES: usize = 20;

/// How a private server is made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Commits wait for the disk. Off for tests, where only speed counts; on where durability is part of what is measured.
    pub fsync: bool,
    /// Further server settings, such as `("max_connections", "300")`; they override the ones above.
    pub settings: Vec<(String, String)>,
    /// Where the server's messages go; default: a file in the cluster's folder, removed with it.
    pub log: Option<PathBuf>,
    /// The installation to run; default: [`Binaries::find`].
    pub binaries: Option<Binaries>,
}

/// A PostgreSQL server that belongs to this process; stopped and removed on drop.
pub struct PrivatePostgres {
    child: Child,
    guard: Option<Guard>,
    place: Option<Place>,
    port: u16,
    password: String,
    programs: PathBuf,
    options: Options,
    log: PathBuf,
}

/// How a server is halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// As an administrator does it: open transactions are rolled back and connections closed with a word.
    Fast,
    /// As a crash of the machine: the next start recovers from the log.
    Crash,
}

impl PrivatePostgres {
    /// Makes a cluster in a new folder below `folder` (below the system's temporary folder if that is closed to the account that
    /// must run the server) and returns when it accepts connections. Blocks for about a second, a minute at most.
    pub fn start(folder: &Path, options: &Options) -> anyhow::Result<Self> {
        let binaries = match &options.binaries {
            Some(binaries) => binaries.clone(),
            None => Binaries::find()?.context(INSTALL_HINT)?,
        };
        let place = Place::below(folder)?;
        let programs = place.programs(&binaries)?;
        let password = random_password()?;
        init(&place, &programs, &password)?;
        Self::over(place, programs, password, options)
    }

    /// Starts a server over a cluster.
    fn over(place: Place, programs: PathBuf, password: String, options: &Options) -> anyhow::Result<Self> {
        let log = options.log.clone().unwrap_or_else(|| place.log());
        let (child, port) = launch(&place, &programs, options, &log)?;
        // From here on the value's drop stops the server, whatever fails.
        let options = options.clone();
        let mut server = Self { child, guard: None, place: None, port, password, programs, options, log };
        server.guard = Some(Guard::over(server.pid(), "INT", Some(place.path()))?);
        place.write_secret("pgpass", &server.passfile_line(), false)?;
        server.place = Some(place);
        Ok(server)
    }

    /// Makes a copy of this server that follows it, in a new folder below `folder`, with the same password and a port of its own.
    ///
    /// Returns when it accepts connections; a minute at most. Nothing waits for it unless `synchronous_standby_names` says so.
    pub fn standby(&self, folder: &Path) -> anyhow::Result<Self> {
        let place = Place::below(folder)?;
        let mut backup = place.command(&self.programs, "pg_basebackup");
        backup.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync", "--pgdata"]);
        backup.arg(place.data()).args(["--host", &Ipv4Addr::LOCALHOST.to_string(), "--port", &self.port.to_string()]);
        backup.args(["--username", SUPERUSER, "--no-password"]).env("PGPASSWORD", &self.password);
        command::run(backup, "copy a PostgreSQL cluster")?;
        Self::over(place, self.programs.clone(), self.password.clone(), &Options { log: None, ..self.options.clone() })
    }

    /// Ends the server, within 20 seconds, and keeps the cluster; [`resume`](Self::resume) starts it again.
    pub fn halt(&mut self, how: Halt) -> anyhow::Result<()> {
        let gentlest = match how {
            Halt::Fast => 0,
            Halt::Crash => 1,
        };
        end(&mut self.child, &STOP_STEPS[gentlest..])
    }

    /// Starts a halted server on the port that it had; returns when it accepts connections, within a minute.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let place = self.place.as_ref().context("the cluster is gone")?;
        let log = File::options().append(true).open(&self.log).context("open the server's log")?;
        let started = start_on(self.port, place, &self.programs, &self.options, (log, &self.log))?;
        self.child = started.with_context(|| format!("port {} was taken by another process", self.port))?;
        self.guard = Some(Guard::over(self.child.id(), "INT", Some(place.path()))?);
        Ok(())
    }

    /// The connection URL of a database, password included; `postgres` exists from the start.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@{}:{}/{database}", self.password, Ipv4Addr::LOCALHOST, self.port)
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The folder of the server's programs, such as `psql` where the installation has it.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The folder of this cluster.
    pub fn folder(&self) -> &Path {
        self.place.as_ref().map_or(Path::new(""), Place::path)
    }

    /// A file for `PGPASSFILE`, readable for this user only: keeps the password off command lines.
    pub fn passfile(&self) -> PathBuf {
        self.folder().join("pgpass")
    }

    /// Stops the server, within 20 seconds, and removes its folder.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.shut_down()
    }

    fn passfile_line(&self) -> String {
        format!("{}:{}:*:{SUPERUSER}:{}\n", Ipv4Addr::LOCALHOST, self.port, self.password)
    }

    fn shut_down(&mut self) -> anyhow::Result<()> {
        end(&mut self.child, &STOP_STEPS)?;
        self.guard = None;
        self.place.take().map_or(Ok(()), Place::remove)
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(error = format!("{error:#}"), "could not stop the private postgresql server");
        }
    }
}

impl fmt::Debug for PrivatePostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivatePostgres").field("pid", &self.pid()).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Makes the cluster. The password goes through a file that only the server's account can read, and that is gone afterwards.
fn init(place: &Place, programs: &Path, password: &str) -> anyhow::Result<()> {
    let password_file = place.write_secret("password", password, true)?;
    let mut initdb = place.command(programs, "initdb");
    initdb.args([
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--no-locale",
        "--no-sync",
        "--no-instructions",
        "--username",
    ]);
    initdb.arg(SUPERUSER).arg("--pwfile").arg(&password_file).arg("--pgdata").arg(place.data());
    command::run(initdb, "make a PostgreSQL cluster")?;
    fs::remove_file(&password_file).context("remove the password file")
}

fn launch(place: &Place, programs: &Path, options: &Options, log: &Path) -> anyhow::Result<(Child, u16)> {
    for _ in 0..PORT_TRIES {
        let port = free_port()?;
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        if let Some(child) = start_on(port, place, programs, options, (file, log))? {
            return Ok((child, port));
        }
    }
    bail!("every one of {PORT_TRIES} free ports was taken by another process before PostgreSQL could listen")
}

/// Starts a server on a port; `None` if another process has the port.
fn start_on(
    port: u16,
    place: &Place,
    programs: &Path,
    options: &Options,
    (file, log): (File, &Path),
) -> anyhow::Result<Option<Child>> {
    let mut child = spawn(place, programs, options, port, file)?;
    match await_ready(&mut child, &place.data()) {
        Ok(None) => Ok(Some(child)),
        Ok(Some(_)) if tail(log).contains("Address already in use") => Ok(None),
        Ok(Some(status)) => bail!("PostgreSQL ended while starting ({status}); its last messages:\n{}", tail(log)),
        Err(error) => {
            end(&mut child, &STOP_STEPS)?;
            Err(error.context(format!("start PostgreSQL; its last messages:\n{}", tail(log))))
        }
    }
}

fn spawn(place: &Place, programs: &Path, options: &Options, port: u16, log: File) -> anyhow::Result<Child> {
    let mut command = place.command(programs, "postgres");
    command.arg("-D").arg(place.data());
    for (name, value) in settings(options, port) {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    command.stdout(log.try_clone()?).stderr(log);
    // A group of its own: Ctrl-C in the terminal is for this process, which stops the server last.
    command.process_group(0).spawn().context("start postgres")
}

fn settings(options: &Options, port: u16) -> Vec<(String, String)> {
    let durable = if options.fsync { "on" } else { "off" };
    let own = [
        ("listen_addresses", Ipv4Addr::LOCALHOST.to_string()),
        ("port", port.to_string()),
        ("unix_socket_directories", String::new()),
        ("fsync", durable.to_owned()),
        ("full_page_writes", durable.to_owned()),
        ("max_connections", "200".to_owned()),
    ];
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(options.settings.iter().cloned()).collect()
}

/// Waits as `pg_ctl -w` does, by the server's own word in its pid file: a port that answers could be anybody's. `Some` if the
/// server ended instead.
fn await_ready(child: &mut Child, data: &Path) -> anyhow::Result<Option<ExitStatus>> {
    let pid = child.id().to_string();
    let pid_file = data.join("postmaster.pid");
    let ended = patience::until(START_BOUND, || {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(Some(status)));
        }
        let content = fs::read_to_string(&pid_file).unwrap_or_default();
        Ok(says_ready(&content, &pid).then_some(None))
    })?;
    ended.with_context(|| format!("wait {START_BOUND:?} for it to accept connections"))
}

/// The first line of `postmaster.pid` is the process, the eighth its state; a standby takes connections, too.
fn says_ready(pid_file: &str, pid: &str) -> bool {
    let mut lines = pid_file.lines();
    lines.next() == Some(pid) && lines.nth(6).is_some_and(|state| ["ready", "standby"].contains(&state.trim()))
}

/// Ends the server with ever harder signals and reaps it.
fn end(child: &mut Child, steps: &[(Signal, Duration)]) -> anyhow::Result<()> {
    for &(signal, bound) in steps {
        if child.try_wait().context("look after postgres")?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(child), signal).context("signal postgres")?;
        if patience::exit_of(child, bound).is_some() {
            return Ok(());
        }
    }
    bail!("postgres (process {}) did not end", child.id())
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

fn random_password() -> anyhow::Result<String> {
    use fmt::Write as _;
    let mut bytes = [0; PASSWORD_BYTES];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).context("read random bytes")?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_the_state_of_this_server_and_not_of_a_left_over_file() {
        let file = "42\n/data\n1700000000\n5432\n\n127.0.0.1\n   1 2\nready   \n";
        assert!(says_ready(file, "42"));
        assert!(!says_ready(file, "43"));
        assert!(!says_ready(&file.replace("ready", "starting"), "42"));
        assert!(says_ready(&file.replace("ready", "standby"), "42"));
        assert!(!says_ready("42\n/data\n", "42"));
        assert!(!says_ready("", "42"));
    }

    #[test]
    fn given_settings_come_last_and_so_override() {
        let options = Options { settings: vec![("fsync".into(), "on".into())], ..Options::default() };
        let all = settings(&options, 1);
        assert_eq!(all.last(), Some(&("fsync".to_owned(), "on".to_owned())));
        assert!(all.contains(&("fsync".to_owned(), "off".to_owned())));
    }

    #[test]
    fn passwords_are_long_and_differ() -> anyhow::Result<()> {
        let (one, two) = (random_password()?, random_password()?);
        assert_eq!(one.len(), 2 * PASSWORD_BYTES);
        assert_ne!(one, two);
        Ok(())
    }
}
