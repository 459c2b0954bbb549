// crirun uses a runtime's CRI socket to start a pod with one container and the labels that a kubelet sets. It prints the
// container's ID. The pod uses the host's network, so no network plugin is necessary.
//
//	crirun SOCKET NAMESPACE POD CONTAINER IMAGE COMMAND...
package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 7 {
		log.Fatal("usage: crirun SOCKET NAMESPACE POD CONTAINER IMAGE COMMAND...")
	}
	id, err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}

func run(socket, namespace, pod, container, image string, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("dialing %s: %w", socket, err)
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)

	uid := fmt.Sprintf("11111111-2222-3333-4444-%012x", os.Getpid())
	labels := map[string]string{
		"io.kubernetes.pod.namespace": namespace,
		"io.kubernetes.pod.name":      pod,
		"io.kubernetes.pod.uid":       uid,
	}
	podLabels := maps.Clone(labels)
	podLabels["app"] = pod // a kubelet sets the pod's own labels only on the sandbox
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod, Namespace: namespace, Uid: uid},
		Labels:       podLabels,
		LogDirectory: "/var/log/pods",
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
		}},
	}
	sb, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return "", fmt.Errorf("running the pod %s: %w", pod, err)
	}
	labels["io.kubernetes.container.name"] = container
	c, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId:  sb.PodSandboxId,
		SandboxConfig: sandbox,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: container},
			Image:    &cri.ImageSpec{Image: image},
			Command:  command,
			Labels:   labels,
			LogPath:  container + ".log",
			Linux:    &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return "", fmt.Errorf("creating the container %s: %w", container, err)
	}
	if _, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return "", fmt.Errorf("starting the container %s: %w", container, err)
	}
	return c.ContainerId, nil
}
