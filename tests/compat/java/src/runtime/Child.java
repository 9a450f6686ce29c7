import java.io.File;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A JVM of its own with this one's class path and flags, to be killed; its output goes to a file. */
final class Child implements AutoCloseable {
    private static final int STOP_SECONDS_MAX = 30;

    private final Process process;

    Child(File log, String main, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of("java"));
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main));
        command.addAll(Arrays.asList(arguments));
        process = new ProcessBuilder(command).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(log)).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
    }

    boolean alive() {
        return process.isAlive();
    }

    /** `kill -9`. */
    void kill() throws Exception {
        process.destroyForcibly().waitFor();
    }

    /** A clean end, or that of the check. */
    void stop() throws Exception {
        process.destroy();
        Checks.that(process.waitFor(STOP_SECONDS_MAX, TimeUnit.SECONDS), "it does not stop");
    }

    @Override
    public void close() throws Exception {
        kill();
    }
}
