//! A private server starts, answers, and leaves nothing behind, however its owner ends.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use private_postgres::{Halt, Options, PrivatePostgres};

/// Sends the protocol's start-up message and returns the type byte of the answer: `R` asks for the password.
fn greet(port: u16) -> anyhow::Result<u8> {
    let body = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(4 + 4 + body.len())?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&[&length.to_be_bytes()[..], &196_608_u32.to_be_bytes(), body].concat())?;
    let mut answer = [0; 1];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended; only its parent's interest is missing.
    !stat.is_empty() && !stat.contains(") Z ")
}

fn entries(folder: &Path) -> anyhow::Result<usize> {
    Ok(fs::read_dir(folder)?.count())
}

#[test]
fn server_asks_for_a_password_and_stop_leaves_no_process_and_no_folder() -> anyhow::Result<()> {
    let parent = tempfile::tempdir()?;
    let server = PrivatePostgres::start(parent.path(), &Options::default())?;
    let (pid, port, folder) = (server.pid(), server.port(), server.folder().to_owned());
    assert_eq!(greet(port)?, b'R');
    assert!(!folder.join("password").exists());
    server.stop()?;
    assert!(!alive(pid));
    assert!(!folder.exists());
    assert_eq!(entries(parent.path())?, 0);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    Ok(())
}

#[test]
fn password_opens_the_server_and_settings_are_applied() -> anyhow::Result<()> {
    let parent = tempfile::tempdir()?;
    let options = Options { settings: vec![("work_mem".into(), "7MB".into())], ..Options::default() };
    let server = PrivatePostgres::start(parent.path(), &options)?;
    let psql = |passfile: &Path| -> anyhow::Result<std::process::Output> {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
        let mut psql = Command::new(server.programs().join("psql"));
        psql.args(["-w", "-At", "-c", "show work_mem", "-c", "show fsync", &url]).env("PGPASSFILE", passfile);
        psql.output().context("run psql")
    };
    let output = psql(&server.passfile())?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "7MB\noff\n");
    assert!(!psql(Path::new("/nonexistent"))?.status.success());
    Ok(())
}

#[test]
fn a_halted_server_resumes_on_its_port_with_what_it_held() -> anyhow::Result<()> {
    let parent = tempfile::tempdir()?;
    let mut server = PrivatePostgres::start(parent.path(), &Options { fsync: true, ..Options::default() })?;
    let port = server.port();
    let ask = |server: &PrivatePostgres, sql: &str| -> anyhow::Result<String> {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let mut psql = Command::new(server.programs().join("psql"));
        psql.args(["-w", "-qAt", "-c", sql, &url]).env("PGPASSFILE", server.passfile());
        Ok(String::from_utf8(psql.output().context("run psql")?.stdout)?)
    };
    ask(&server, "create table t as select 1 as n")?;
    for how in [Halt::Fast, Halt::Crash] {
        let before = server.pid();
        server.halt(how)?;
        assert!(!alive(before) && greet(port).is_err(), "{how:?}");
        server.resume()?;
        ask(&server, "insert into t select max(n) + 1 from t")?;
    }
    assert_eq!(ask(&server, "select count(*) from t")?, "3\n");
    server.stop()?;
    assert_eq!(entries(parent.path())?, 0);
    Ok(())
}

#[test]
fn a_setting_that_the_server_refuses_is_shown_with_its_message() -> anyhow::Result<()> {
    let parent = tempfile::tempdir()?;
    let options = Options { settings: vec![("no_such_setting".into(), "1".into())], ..Options::default() };
    let error = PrivatePostgres::start(parent.path(), &options).err().context("the setting was accepted")?;
    assert!(format!("{error:#}").contains("no_such_setting"), "{error:#}");
    assert_eq!(entries(parent.path())?, 0);
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn killed_owner_takes_its_server_and_folder_along() -> anyhow::Result<()> {
    use std::{
        io::{BufRead as _, BufReader},
        process::Stdio,
    };

    // The owner is this test binary again, running the ignored test below.
    let parent = tempfile::tempdir()?;
    let mut owner = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "owner_that_waits_to_be_killed", "--nocapture"])
        .env("PRIVATE_POSTGRES_PARENT", parent.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(owner.stdout.take().context("owner's output")?).lines();
    let line = lines.find_map(|line| line.ok()?.split_once("server ").map(|(_, pid)| pid.to_owned()));
    let pid: u32 = line.context("the owner started no server")?.parse()?;
    ensure!(alive(pid), "the server is not running");
    owner.kill()?;
    owner.wait()?;
    for _ in 0..200 {
        if !alive(pid) && entries(parent.path())? == 0 {
            return Ok(());
        }
        pause();
    }
    anyhow::bail!(
        "the server outlived its killed owner: process {}, folder entries {}",
        alive(pid),
        entries(parent.path())?
    )
}

#[test]
#[ignore = "the process that another test kills"]
fn owner_that_waits_to_be_killed() -> anyhow::Result<()> {
    let parent = std::env::var_os("PRIVATE_POSTGRES_PARENT").context("run by another test")?;
    let server = PrivatePostgres::start(Path::new(&parent), &Options::default())?;
    println!("server {}", server.pid());
    // Ends when the other test closes the pipe, should it fail before it kills.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(server);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the end of a process that is no child of this one has no event")]
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}
